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
    [ -z "$locked" ] || rm -f -- "$lock"
    printf '%s' "$1" >exit.part && mv exit.part exit
    exit "$1"
}

take_lock() { # 0: taken, 2: another job has it
    for _ in 1 2 3; do
        # Opened for reading: a lock file in /tmp that another user made can't be opened for writing.
        [ -e "$lock" ] || (umask 0 && : >"$lock") 2>/dev/null
        exec 9<"$lock" || return 1
        flock -n 9 || return 2
        # A holder removes the file at its end: what we hold must be what others will find.
        [ "$(stat -Lc %i "/proc/$$/fd/9")" = "$(stat -c %i "$lock" 2>/dev/null)" ] && return 0
    done
    return 1
}

# Runs without the mark itself, or it would find its own processes for ever.
end='
marked() {
    for file in $(grep -lzxs "BENCHWRIGHT_JOB=$1" /proc/[0-9]*/environ); do
        pid=${file#/proc/} pid=${pid%/environ}
        [ "$pid" = "$2" ] || [ "$pid" = "$3" ] || printf "%s\n" "$pid"
    done
}
kill -TERM $(marked "$@") 2>/dev/null
for _ in $(seq 50); do
    [ -z "$(marked "$@")" ] && exit
    sleep 0.1
done
kill -KILL $(marked "$@") 2>/dev/null
'
end_marked() { # TERM, five seconds, KILL to every process of the job but this one
    env -u BENCHWRIGHT_JOB bash -c "$end" end "$id" "$$" "$BASHPID"
}

: >lease
locked=
if [ -n "$lock" ]; then
    take_lock
    case $? in
    0) locked=yes ;;
    2) cat "$lock" >refused && finish 75 ;;
    *) finish 91 ;;
    esac
    printf '%s' "$owner" | dd of="$lock" conv=nocreat status=none 2>/dev/null
fi
trap 'end_marked; finish 143' TERM
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
