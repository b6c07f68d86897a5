# The first process of a container without a Python. It reaps orphans, so a program that kills everything it can reach leaves
# the container up, and it ends with the host process: then its stdin ends, and with it the container.
#   $1  a word that begins its own line, and nothing else
#   $2  this script, which then goes on in a copy of the shell that nobody may read: Linux lets no other process of the same
#       user read, trace or change one that runs such a file, nor open what it has open
# It says one line: the word and "ready without Python" (and "unguarded", if programs can look into this one). Then it reads
# lines of a signal's name and a word. It sends the signal to everything that runs here: that takes no new process, so it works
# while a fork bomb holds all there may be. It answers with the word and the number of processes then, this one included.
place=/tmp/$1
if [ -n "$2" ]; then
    # a config may give the code another PATH
    (
        PATH=/usr/bin:/bin:$PATH
        mkdir "$place" && cp /bin/sh "$place/sh" && chmod 111 "$place/sh" || exit
        # gVisor runs no file that its user may not read: then this process finds out that it is not guarded
        "$place/sh" -c : 2>/dev/null || chmod 555 "$place/sh"
    ) || exit
    exec "$place/sh" -c "$2" guard "$1"
fi
exec 3<&0 </dev/null
(PATH=/usr/bin:/bin:$PATH; rm -r "$place")
# tried out, as neither the kernel nor what is in its place need say
if /bin/sh -c ': <"/proc/$1/environ"' sh $$ 2>/dev/null; then
    echo "$1 ready without Python, unguarded"
else
    echo "$1 ready without Python"
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
    elif read -r signal word; then
        kill -"$signal" -1
        jobs
        set -- /proc/[0-9]*
        echo "$word $#"
        left=$most
        trap woken=1 CHLD
    elif [ -z "$woken" ]; then
        exit
    fi
    left=$((left - 1))
    # code can wake it without end: then nothing does until it is told something
    if [ "$left" -eq 0 ]; then trap - CHLD; fi
done
