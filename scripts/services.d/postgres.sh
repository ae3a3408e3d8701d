# shellcheck shell=bash
# PostgreSQL: TCP on loopback only, everyone there is trusted, durable as by
# default. Sourced by scripts/services.

# postgres_bin prints the folder of the newest server's programs, which Debian
# keeps out of PATH.
postgres_bin() {
  local newest
  newest=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
  [[ -x $newest ]] || newest=$(command -v initdb) || return 1
  dirname -- "$(realpath -- "$newest")"
}

postgres_start() {
  local data=$STATE/postgres/data bin
  local -a as_user=()
  bin=$(postgres_bin) || return
  # It refuses to run as root.
  ((UID != 0)) || as_user=(setpriv --reuid=postgres --regid=postgres --init-groups --reset-env)
  if [[ ! -e $STATE/postgres/complete ]]; then
    mkdir -m 700 -- "$data" || return
    if ((UID == 0)); then give_to_postgres "$data" || return; fi
    "${as_user[@]}" "$bin/initdb" --pgdata="$data" --username=postgres --auth=trust \
      --encoding=UTF8 --locale=C.UTF-8 || return
  fi
  pid_of postgres >/dev/null && return
  forget_dead_postgres "$data" || return
  launch postgres "${as_user[@]}" "$bin/postgres" -D "$data" -p "$(port postgres)" \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200
}

postgres_answers() {
  inside postgres pg_isready -q -t 3 -h 127.0.0.1 -p "$(port postgres)" -U postgres -d postgres
}

# forget_dead_postgres DATA: after kill -9 the server's children end by themselves,
# soon, and must have before the next one starts. Its lock file then is removed:
# by it a server whose parent never took note of its end would count as running.
forget_dead_postgres() {
  local deadline=$((SECONDS + 20))
  while someone_in "$1"; do
    if ((SECONDS >= deadline)); then
      echo "processes of a PostgreSQL that ended still work in $1"
      return 1
    fi
    sleep 0.05
  done
  rm -f -- "$1/postmaster.pid"
}

give_to_postgres() {
  chown postgres:postgres -- "$1" || return
  setpriv --reuid=postgres --regid=postgres --init-groups test -w "$1" && return
  echo "The user postgres, as which root has to run PostgreSQL, cannot enter $1:" \
    "a folder above it is closed to other users. Set FRESHET_SERVICES_DIR (or TMPDIR)" \
    "to a folder that is open to all, such as one in /var/tmp."
  return 1
}
