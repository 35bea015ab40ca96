#!/usr/bin/env bash
# job.sh FOLDER ID LOCK OWNER DEADLINE_S LEASE_S
#
# Runs FOLDER/command.sh to its end, whoever is still connected. Started in a session of its own
# with BENCHWRIGHT_JOB=ID in its environment: every process of the job inherits that mark, and is
# found by it even if it left the process group.
#
# Leaves in FOLDER: job.log (both streams), pid, exit (the code, written last), ended (why the job
# was ended early: deadline, lease), refused (who holds the endpoint). Whoever follows the job
# touches FOLDER/lease; untouched for LEASE_S, nobody is interested any more, and the job ends.
folder=$1 id=$2 lock=$3 owner=$4 deadline=$5 lease=$6
cd -- "$folder" || exit 90

finish() {
    printf '%s' "$1" >exit.part && mv exit.part exit
    exit "$1"
}

marked() {
    grep -lzxs "BENCHWRIGHT_JOB=$id" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
        [ "$pid" = "$$" ] || [ "$pid" = "$BASHPID" ] || [ "$pid" = "$PPID" ] || printf '%s\n' "$pid"
    done
}

end_marked() {
    kill -TERM $(marked) 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -z "$(marked)" ] && return
        sleep 0.5
    done
    kill -KILL $(marked) 2>/dev/null
}

: >lease
if [ -n "$lock" ]; then
    # Opened for reading: a lock file in /tmp that another user made can't be opened for writing.
    [ -e "$lock" ] || (umask 0 && : >"$lock") 2>/dev/null
    exec 9<"$lock" || finish 91
    if ! flock -n 9; then
        cat "$lock" >refused
        finish 75
    fi
    printf '%s' "$owner" | dd of="$lock" conv=nocreat status=none 2>/dev/null
fi
printf '%s' "$$" >pid

begun=$(date +%s)
bash -l ./command.sh >job.log 2>&1 </dev/null &
child=$!
(
    while sleep 5; do
        now=$(date +%s)
        if [ $((now - begun)) -gt "$deadline" ]; then
            printf deadline >ended
        elif [ $((now - $(stat -c %Y lease))) -gt "$lease" ]; then
            printf lease >ended
        else
            continue
        fi
        end_marked
        exit
    done
) &
wait "$child"
code=$?
# What the command left behind would load the server under the next run.
end_marked
finish "$code"
