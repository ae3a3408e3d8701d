# shellcheck shell=bash
# Starting, finding and stopping local processes. The name of a process is its folder below
# $STATE: the name of its service, or cluster/1 to cluster/3. Sourced by scripts/services.

processes() {
  case $1 in
    cluster) echo cluster/1 cluster/2 cluster/3 ;;
    *) echo "$1" ;;
  esac
}

# launch PROCESS COMMAND...: runs a command in a new session, without open file descriptors of
# the caller. An argument of COMMAND must contain $STATE/PROCESS/, by which pid_of finds the
# process. pid_of succeeds when launch returns, if the process still runs.
launch() {
  local process=$1 deadline=$((SECONDS + 5))
  shift
  # A killed process frees its port a moment after it has disappeared from the process table.
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

# pid_of PROCESS: prints the id of the running process, and fails if there is none. It checks
# the arguments too, because the kernel reuses ids.
pid_of() {
  local pid=
  [[ -s $STATE/$1/pid ]] && pid=$(<"$STATE/$1/pid")
  [[ $pid =~ ^[0-9]+$ ]] || return 1
  grep -qzF -- "$STATE/$1/" "/proc/$pid/cmdline" 2>/dev/null || return 1
  echo "$pid"
}

# alive NAME: succeeds if every process of the service runs.
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

# terminate NAME: ends the processes of a service with TERM, and after ten seconds with KILL.
terminate() {
  local process signal=TERM failed=0
  # On TERM PostgreSQL waits for its clients, on INT it does not.
  [[ $1 == postgres ]] && signal=INT
  for process in $(processes "$1"); do signal_to "$process" "$signal"; done
  for process in $(processes "$1"); do
    ended "$process" 10 && continue
    signal_to "$process" KILL
    ended "$process" 5 && continue
    say "$process (process $(pid_of "$process")) does not end on kill -9"
    failed=1
  done
  return "$failed"
}

signal_to() {
  local pid
  if pid=$(pid_of "$1"); then kill "-$2" "$pid"; fi
}

# ended PROCESS SECONDS: waits for the end of a process, and fails after SECONDS.
ended() {
  local deadline=$((SECONDS + $2))
  while pid_of "$1" >/dev/null; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

discard() {
  terminate "$1" && rm -rf -- "${STATE:?}/$1"
}

# someone_in FOLDER: succeeds if a process has the folder as its working directory.
someone_in() {
  local process
  for process in /proc/[0-9]*; do
    [[ $process/cwd -ef $1 ]] && return 0
  done
  return 1
}

# inside PROCESS COMMAND...: runs a command on the host or in the container of a process.
inside() {
  local process=$1
  shift
  if by_compose; then
    compose exec -T "${process/\//-}" "$@"
  else
    "$@"
  fi
}
