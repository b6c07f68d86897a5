# The container's first process, started by guard.sh. It reaps orphans, so a block that kills everything it can reach
# leaves the container up, and it ends with the host process: then its stdin ends, and with it the container.
#   $1  a word that begins its own line, and nothing else
#   $2  a file the host has put into the workspace, or nothing: is this directory really shared?
#   $3  the same of the packages: is this layer really shared?
#   $4  a command to run first, or nothing
#   $5  whether no file may be made that runs with its owner's rights: tried out, as an engine need not say
# It says one line: the word and "ready" (and "unguarded", if programs can look into this one), or what is wrong. Then it
# reads names of signals, one a line, and sends each to everything that runs here: that takes no new process, so it works
# while a fork bomb holds all there may be. It answers with what follows the name.
exec 3<&0 </dev/null
(PATH=/usr/bin:/bin:$PATH; rm -r "/tmp/$1")
if [ -x . ] && [ -n "$2" ] && ! [ -e "$2" ]; then
    echo "$1 unshared"
    exit
fi
if [ -n "$3" ] && ! [ -e "$3" ]; then
    echo "$1 unprovided"
    exit
fi
if ! [ -x . ] || ! [ -w . ]; then
    echo "$1 unwritable"
    exit
fi
if [ -n "$5" ]; then
    : >"/tmp/$1"
    if ! chmod 700 "/tmp/$1" || chmod 4700 "/tmp/$1" 2>/dev/null; then
        echo "$1 set-id"
        exit
    fi
    rm "/tmp/$1"
fi
if [ -n "$4" ]; then
    /bin/sh -c "$4" 2>&1 || { echo "$1 init-failed $?"; exit; }
fi
# tried out, as neither the kernel nor what is in its place need say
if /bin/sh -c ': <"/proc/$1/environ"' sh $$ 2>/dev/null; then
    echo "$1 ready unguarded"
else
    echo "$1 ready"
fi
# This process itself reads: a child could be stopped by the code. A shell that reads does not reap, unless it is woken.
exec <&3 3<&-
most=100000
left=$most
trap woken=1 CHLD
while :; do
    woken=
    # reaps all that has ended
    jobs
    if [ -n "$woken" ]; then
        :
    elif read -r signal nonce; then
        kill -"$signal" -1
        echo "$nonce"
        left=$most
        trap woken=1 CHLD
    elif [ -z "$woken" ]; then
        exit
    fi
    left=$((left - 1))
    # code can wake it without end: then nothing does until it is told something
    if [ "$left" -eq 0 ]; then trap - CHLD; fi
done
