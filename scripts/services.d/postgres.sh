# shellcheck shell=bash
# PostgreSQL: TCP on loopback only, without passwords, with the default durability. Sourced by
# scripts/services.

# postgres_bin prints the folder of the newest server's programs. Debian does not add it to PATH.
postgres_bin() {
  local newest
  newest=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
  [[ -x $newest ]] || newest=$(command -v initdb) || return 1
  dirname -- "$(realpath -- "$newest")"
}

postgres_start() {
  local data=$STATE/postgres/data bin
  local -a as_user=() options=()
  bin=$(postgres_bin) || return
  # PostgreSQL does not run as root.
  ((UID != 0)) || as_user=(setpriv --reuid=postgres --regid=postgres --init-groups --reset-env)
  if [[ ! -e $STATE/postgres/complete ]]; then
    mkdir -m 700 -- "$data" || return
    if ((UID == 0)); then give_to_postgres "$data" || return; fi
    "${as_user[@]}" "$bin/initdb" --pgdata="$data" --username=postgres --auth=trust \
      --encoding=UTF8 --locale=C.UTF-8 || return
  fi
  pid_of postgres >/dev/null && return
  forget_dead_postgres "$data" || return
  # pg_stat_statements counts statements; a test of e2e reads it.
  [[ ! -e $bin/../lib/pg_stat_statements.so ]] || options+=(-c shared_preload_libraries=pg_stat_statements)
  launch postgres "${as_user[@]}" "$bin/postgres" -D "$data" -p "$(port postgres)" \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200 "${options[@]}"
}

postgres_answers() {
  inside postgres pg_isready -q -t 3 -h 127.0.0.1 -p "$(port postgres)" -U postgres -d postgres
}

# forget_dead_postgres DATA: waits until the child processes of a killed server have ended, as
# the next start requires. It then removes the lock file, because a zombie process would still
# count as running.
forget_dead_postgres() {
  local deadline=$((SECONDS + 20))
  while someone_in "$1"; do
    if ((SECONDS >= deadline)); then
      echo "child processes of a killed PostgreSQL still run in $1"
      return 1
    fi
    sleep 0.05
  done
  rm -f -- "$1/postmaster.pid"
}

give_to_postgres() {
  chown postgres:postgres -- "$1" || return
  setpriv --reuid=postgres --regid=postgres --init-groups test -w "$1" && return
  echo "The user postgres, which runs PostgreSQL, has no access to $1:" \
    "a parent folder denies access to other users. Set FRESHET_SERVICES_DIR (or TMPDIR)" \
    "to a folder with access for all users, such as one in /var/tmp."
  return 1
}
