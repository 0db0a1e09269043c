#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A database of its own, as the user postgres: made, or under a small load for some seconds.
# usage: postgres.sh init|load DIRECTORY (which belongs to postgres)
set -e
directory=$2
for bin in /usr/lib/postgresql/*/bin; do :; done	# the newest
if [ "$1" = init ]; then
	"$bin/initdb" -D "$directory/data" -A trust >/dev/null
	exit
fi
"$bin/pg_ctl" -D "$directory/data" -o "-k $directory -c listen_addresses=''" -l "$directory/log" -w start >/dev/null
trap '"$bin/pg_ctl" -D "$directory/data" -m fast stop >/dev/null' EXIT
"$bin/createdb" -h "$directory" bench
"$bin/pgbench" -h "$directory" -q -i bench >/dev/null 2>&1
"$bin/pgbench" -h "$directory" -c 4 -T 2 bench >/dev/null 2>&1
