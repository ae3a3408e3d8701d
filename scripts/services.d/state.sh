# shellcheck shell=bash
# The directory with the state of one set of services: ports, process ids, data and logs.
# Sourced by scripts/services.

MARK=freshet-services.lock

# take_lock creates the directory if necessary and locks it against other runs of this script.
# 'down' removes the directory with the lock file, so a lock is valid only if the locked file
# still exists at its path.
take_lock() {
  refuse_foreign_directory
  while :; do
    mkdir -p -- "$STATE/log" || die "cannot create $STATE: set FRESHET_SERVICES_DIR to a writable folder"
    exec 9>"$STATE/$MARK" || die "cannot write to $STATE: set FRESHET_SERVICES_DIR to another folder"
    if ! flock -n 9; then
      say "waiting for another run of this script in $STATE"
      flock 9
    fi
    [[ $STATE/$MARK -ef /dev/fd/9 ]] && return
  done
}

# Refuses a directory that this script has not created.
refuse_foreign_directory() {
  [[ -e $STATE ]] || return 0
  [[ -d $STATE && -O $STATE ]] || die "$STATE is not a folder of yours: set FRESHET_SERVICES_DIR to another"
  [[ -e $STATE/$MARK || -z $(ls -A -- "$STATE") ]] ||
    die "$STATE contains files of other programs: set FRESHET_SERVICES_DIR to an empty folder"
}

remove_state() {
  local name
  for name in "${ALL[@]}" log base-port runtime; do rm -rf -- "${STATE:?}/$name"; done
  rm -f -- "$STATE/$MARK"
  rmdir -- "$STATE" && say "stopped, and removed $STATE"
}

# port PROCESS: prints the port of a process, in a block of ten. The nodes of the Redis Cluster
# also use the port 10000 above their own for their bus.
port() {
  local base
  base=$(<"$STATE/base-port")
  case $1 in
    postgres) echo "$base" ;;
    redis) echo $((base + 1)) ;;
    cluster/*) echo $((base + 1 + ${1#*/})) ;;
    kafka) echo $((base + 5)) ;;
    kafka/controller) echo $((base + 6)) ;;
  esac
}

# choose_ports chooses a block of ports once. The ports are below the range that Linux uses for
# outgoing connections (32768 and above), so that a port is still free after a restart.
choose_ports() {
  local base try
  [[ -s $STATE/base-port ]] && return
  for ((try = 0; try < 100; try++)); do
    base=$((12000 + 10 * (SRANDOM % 1000)))
    if free_block "$base"; then
      echo "$base" >"$STATE/base-port"
      return
    fi
  done
  die "no ten consecutive free ports between 12000 and 21999 on 127.0.0.1"
}

free_block() {
  local port
  for port in "$1" $(($1 + 1)) $(($1 + 2)) $(($1 + 3)) $(($1 + 4)) $(($1 + 5)) $(($1 + 6)) \
    $(($1 + 10002)) $(($1 + 10003)) $(($1 + 10004)); do
    if taken "$port"; then return 1; fi
  done
}

taken() {
  (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

milliseconds() {
  echo $((${EPOCHREALTIME/[.,]/} / 1000))
}

seconds_since() {
  local passed=$(($(milliseconds) - $1))
  printf '%d.%d\n' $((passed / 1000)) $((passed % 1000 / 100))
}

show_log() {
  if by_compose; then
    compose_log "$1"
  elif [[ -e $STATE/log/$1 ]]; then
    cat -- "$STATE/log/$1"
  else
    die "no log: $1 was not started in $STATE"
  fi
}
