#!/bin/sh
# Runs any command that saves on SIGTERM: save-wrapper.sh COMMAND [ARGUMENTS]
# A request of gpu-extender to save reaches the command as SIGTERM. When the command has ended after it, this exits
# with 75, which tells gpu-extender that the work is saved. Else it exits as the command does.
file=${SAVE_REQUEST_FILE:-/etc/gpu-extender/save-requested}
while [ -s "$file" ]; do sleep 1; done # started again after a save: nothing to do until the pod is evicted

"$@" &
child=$!
asked=
trap 'asked=yes; kill -TERM "$child" 2>/dev/null' TERM INT
while kill -0 "$child" 2>/dev/null; do
    if [ -s "$file" ] && [ -z "$asked" ]; then
        asked=yes
        kill -TERM "$child"
    fi
    sleep 1 &
    wait "$!"
done
wait "$child"
status=$?
[ -n "$asked" ] && exit 75
exit "$status"
