# shellcheck shell=bash
# Starting, finding and stopping local processes. A process is named by its
# folder under $STATE: a service has one of its own name, the cluster has three.
# Sourced by scripts/services.

processes() {
  case $1 in
    cluster) echo cluster/1 cluster/2 cluster/3 ;;
    *) echo "$1" ;;
  esac
}

# launch PROCESS COMMAND...: runs it in a session of its own, with nothing open
# that a caller waits for. COMMAND must name $STATE/PROCESS/ in an argument: by
# that pid_of knows it again, and does when this returns, if it still runs.
launch() {
  local process=$1 deadline=$((SECONDS + 5))
  shift
  # Who was killed lets go of its memory first, and is not seen any more, and then of
  # its port.
  while taken "$(port "$process")"; do
    if ((SECONDS >= deadline)); then
      echo "port $(port "$process") of 127.0.0.1 is taken by another program"
      return 1
    fi
    sleep 0.05
  done
  (
    exec </dev/null 3>&- 4>&- 9>&-
    echo "$BASHPID" >"$STATE/$process/pid"
    exec setsid -- "$@"
  ) &
  while kill -0 "$!" 2>/dev/null && ! pid_of "$process" >/dev/null; do sleep 0.01; done
}

# pid_of PROCESS: prints the id of the running process, and fails if there is
# none. The id alone would not do: a dead process's id may be another's by now.
pid_of() {
  local pid=
  [[ -s $STATE/$1/pid ]] && pid=$(<"$STATE/$1/pid")
  [[ $pid =~ ^[0-9]+$ ]] || return 1
  grep -qzF -- "$STATE/$1/" "/proc/$pid/cmdline" 2>/dev/null || return 1
  echo "$pid"
}

# alive NAME: every process of it runs.
alive() {
  local process
  by_compose && return 0
  for process in $(processes "$1"); do
    pid_of "$process" >/dev/null || return 1
  done
}

pids_shown() {
  local process pids=()
  if by_compose; then
    echo docker
    return
  fi
  for process in $(processes "$1"); do pids+=("$(pid_of "$process" || echo -)"); done
  echo "${pids[*]}"
}

# halt NAME: ends its processes, kindly for ten seconds and then not.
halt() {
  local process signal=TERM failed=0
  # PostgreSQL takes TERM as 'when the last client has left', INT as 'now'.
  [[ $1 == postgres ]] && signal=INT
  for process in $(processes "$1"); do signal_to "$process" "$signal"; done
  for process in $(processes "$1"); do
    ended "$process" 10 && continue
    signal_to "$process" KILL
    ended "$process" 5 && continue
    say "$process (process $(pid_of "$process")) does not end, not even by kill -9"
    failed=1
  done
  return "$failed"
}

signal_to() {
  local pid
  if pid=$(pid_of "$1"); then kill "-$2" "$pid"; fi
}

# ended PROCESS SECONDS: waits that long at most for its end.
ended() {
  local deadline=$((SECONDS + $2))
  while pid_of "$1" >/dev/null; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

discard() {
  halt "$1" && rm -rf -- "${STATE:?}/$1"
}

# someone_in FOLDER: a process works in it.
someone_in() {
  local process
  for process in /proc/[0-9]*; do
    [[ $process/cwd -ef $1 ]] && return 0
  done
  return 1
}

# inside PROCESS COMMAND...: runs a short command where that process runs.
inside() {
  local process=$1
  shift
  if by_compose; then
    compose exec -T "${process/\//-}" "$@"
  else
    "$@"
  fi
}
