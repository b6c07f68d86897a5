# Runs one program in a container and says how it ended. The first argument is how many descriptors a process of it may
# have; the program follows. The first line of stdin is a mark that the program does not
# know; the rest of stdin is the program's. Its stdout and stderr are one pipe, which keeps them in order. At the end:
# the mark, the exit code, processes killed for memory and processes refused since the program began, microseconds of
# processor time since then (-1 if not known), and processes that it has left running.
trap : INT
ulimit -n "$1"
shift
read -r mark || exit
count() {
    # $1 key; $2, $3 the file of cgroup version 2 or 1
    n=0
    for file in "$2" "$3"; do
        if [ -r "$file" ]; then
            while read -r key value; do
                if [ "$key" = "$1" ]; then n=$value; fi
            done <"$file"
            break
        fi
    done
}
counts() {
    count oom_kill /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control
    oom=$n
    count max /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events
    refused=$n
    used=-1
    if [ -e /sys/fs/cgroup/cgroup.events ]; then
        # not that of the whole machine
        count usage_usec /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu.stat
        used=$n
    elif [ -r /sys/fs/cgroup/cpuacct/cpuacct.usage ]; then
        read -r n </sys/fs/cgroup/cpuacct/cpuacct.usage
        used=$((n / 1000))
    fi
}
counts
oom_before=$oom refused_before=$refused used_before=$used
if [ $# -ge 4 ] && [ "$1 $2" = "sh -c" ]; then
    # this shell can run the script: to start a second one takes longer than all else here
    script=$3
    shift 4
    (eval "$script") 2>&1
else
    "$@" 2>&1
fi
code=$?
counts
if [ "$used" -ge 0 ]; then used=$((used - used_before)); fi
# all but the first process and this one
set -- /proc/[0-9]*
printf '%s %d %d %d %d %d\n' "$mark" "$code" "$((oom - oom_before))" "$((refused - refused_before))" "$used" "$(($# - 2))"
