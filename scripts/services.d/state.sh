# shellcheck shell=bash
# The directory that holds everything one set of services needs to remember:
# ports, process ids, data and logs. Sourced by scripts/services.

MARK=freshet-services.lock

# take_lock makes the directory if need be and keeps other runs of this script
# out of it until this one ends. 'down' removes the directory, lock and all, so
# a lock is only good if the file that was locked is still the one found there.
take_lock() {
  refuse_foreign_directory
  while :; do
    mkdir -p -- "$STATE/log" || die "cannot make $STATE: set FRESHET_SERVICES_DIR to a folder you can write to"
    exec 9>"$STATE/$MARK" || die "cannot write to $STATE: set FRESHET_SERVICES_DIR to another folder"
    if ! flock -n 9; then
      say "waiting for another run of this script in $STATE"
      flock 9
    fi
    [[ $STATE/$MARK -ef /dev/fd/9 ]] && return
  done
}

# What is not ours is neither used nor, later, removed.
refuse_foreign_directory() {
  [[ -e $STATE ]] || return 0
  [[ -d $STATE && -O $STATE ]] || die "$STATE is not a folder of yours: set FRESHET_SERVICES_DIR to another"
  [[ -e $STATE/$MARK || -z $(ls -A -- "$STATE") ]] ||
    die "$STATE holds files that are not from this script: set FRESHET_SERVICES_DIR to an empty folder"
}

remove_state() {
  local name
  for name in "${ALL[@]}" log base-port runtime; do rm -rf -- "${STATE:?}/$name"; done
  rm -f -- "$STATE/$MARK"
  rmdir -- "$STATE" && say "stopped, and removed $STATE"
}

# port PROCESS: each has its place in a block of ten. Redis Cluster's nodes also
# use the port 10000 above theirs, to talk to each other.
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

# choose_ports picks a block when there is none yet. All lie below the range that
# Linux gives to outgoing connections (32768 and up), so that a port still is free
# when a service comes back to it.
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
  die "found no ten free ports between 12000 and 21999 on 127.0.0.1"
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
    die "$1 was not started in $STATE: there is no log"
  fi
}
