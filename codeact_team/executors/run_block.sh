# Runs a code block as one process, from where only this sandbox can write; the workspace, which others may share, gets a copy.
#   $1 the block's file, below the working directory; $2 a directory to be made for the code; $3 the program that runs
#   Python code as if it was that file, or nothing; then the command to run it with
# stdin: the code.
file=$1 private=$2 as_file=$3
shift 3
if [ -e "$private" ] || [ -L "$private" ]; then
    # of the block before, which may have closed it
    rm -rf -- "$private" 2>/dev/null || { chmod -R u+rwx "$private" && rm -rf -- "$private"; } || exit 1
fi
code=$private/${file##*/}
mkdir -m 700 "$private" && cat >"$code" || exit 1
case $file in
*/*) mkdir -p -- "${file%/*}" || exit 1 ;;
esac
# a link that earlier code has planted is replaced, not followed
if [ -e "$file" ] || [ -L "$file" ]; then
    rm -f -- "$file"
fi
cat "$code" >"$file" || exit 1
if [ -n "$as_file" ]; then
    # at its start Python would run files there, which may be an earlier block's; the program makes up for it
    export PYTHONUSERBASE="/dev/null/$PYTHONUSERBASE"
    exec "$@" -c "$as_file" "$code" "$file" </dev/null
fi
exec "$@" "$code" </dev/null
