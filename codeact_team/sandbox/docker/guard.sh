# Becomes the first process of a container without a Python, in a copy of the shell that nobody may read: Linux lets no other
# process of the same user read, trace or change one that runs such a file, nor open what it has open.
#   $1  the script of the first process, init.sh
#   $2  its first argument, a random word; the others follow
place=/tmp/$2
# a config may give the code another PATH
(
    PATH=/usr/bin:/bin:$PATH
    mkdir "$place" && cp /bin/sh "$place/sh" && chmod 111 "$place/sh" || exit
    # gVisor runs no file that its user may not read: init.sh finds out that it is not guarded
    "$place/sh" -c : 2>/dev/null || chmod 555 "$place/sh"
) || exit
script=$1
shift
exec "$place/sh" -c "$script" init "$@"
