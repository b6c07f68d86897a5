# The container's first process, run by /bin/sh. It reaps orphans, so a block that kills everything it can reach
# leaves the container up, and it ends with the host process: then its stdin ends, and with it the container.
#   $1  a file the host has put into the workspace, or nothing: is this directory really shared?
#   $2  a command to run first, or nothing
# It says one line: "ready", or what is wrong. Then it reads names of signals, one a line, and sends each to
# everything that runs here: that takes no new process, so it works while a fork bomb holds all there may be.
exec 3<&0 </dev/null
if [ -n "$1" ] && ! [ -e "$1" ]; then
    echo unshared
    exit
fi
if ! [ -w . ]; then
    echo unwritable
    exit
fi
if [ -n "$2" ]; then
    /bin/sh -c "$2" >&2 || { echo "init-failed $?"; exit; }
fi
echo ready
while :; do
    { while read -r signal; do kill -"$signal" -1; done; exit 9; } <&3 &
    wait $!
    # a block can kill the reader, but only the end of the input makes it exit with 9
    [ $? -eq 9 ] && exit
done
