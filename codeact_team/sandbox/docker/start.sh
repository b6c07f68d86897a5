# What a container starts with: checks that it is as it should be, says one line, and becomes its supervisor.
#   $1  a word that begins its line, and nothing else
#   $2  a file the host has put into the workspace, or nothing: is this directory really shared?
#   $3  the same of the packages: is this layer really shared?
#   $4  a command to run first, or nothing
#   $5  whether no file may be made that runs with its owner's rights: tried out, as an engine need not say
#   $6  commands for the limits of the supervisor and of all that it starts, or nothing
#   $7  guard.sh: what runs where there is no Python, or none is to run
#   then the command of the supervisor; nothing if no Python is to run
# It says the word and "ready"; or what is wrong, and ends.
exec 3<&0 </dev/null
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
    # what it leaves running writes to a file, and not between what the supervisor sends; nor does it read for that
    /bin/sh -c "$4" >"/tmp/$1" 2>&1 3<&- || {
        code=$?
        (PATH=/usr/bin:/bin:$PATH; cat "/tmp/$1")
        echo "$1 init-failed $code"
        exit
    }
    (PATH=/usr/bin:/bin:$PATH; rm "/tmp/$1")
fi
word=$1 limits=$6 guard=$7
shift 7
if [ $# -gt 0 ] && command -v "$1" >/dev/null; then
    eval "$limits"
    echo "$word ready"
    exec "$@" <&3 3<&-
fi
exec /bin/sh -c "$guard" guard "$word" "$guard" <&3 3<&-
