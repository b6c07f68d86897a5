# Stores a code block in the workspace and runs it there, as one process.
#   $1 the block's file, below the working directory; then the command to run it with
# stdin: the code.
file=$1
shift
case $file in
*/*) mkdir -p -- "${file%/*}" || exit 1 ;;
esac
# a link that earlier code has planted is replaced, not followed
if [ -e "$file" ] || [ -L "$file" ]; then
    rm -f -- "$file"
fi
cat >"$file" || exit 1
# a name, not an option
case $file in
-*) file=./$file ;;
esac
exec "$@" "$file" </dev/null
