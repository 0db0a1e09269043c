#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A bank in a postgres database of its own, below /var/tmp.
# usage: bank.sh start | load [--ask-first] | stop
#
# Four clients book payments for five seconds (BANK_SECONDS). A payment updates the balance of the bank, writes an
# audit, which takes 3 ms, and asks another service, which takes 5 ms: in the transaction, or before it (--ask-first).
set -e
home=/var/tmp/bank-of-postgres
cd /						# postgres may not enter the directory of root
for bin in /usr/lib/postgresql/*/bin; do :; done	# the newest

as_owner() {	# postgres refuses to run as root
	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
	else
		"$@"
	fi
}

case $1 in
start)
	rm -rf "$home"
	mkdir -m 755 "$home"
	[ "$(id -u)" != 0 ] || chown postgres "$home"
	as_owner "$bin/initdb" -D "$home/data" -A trust >/dev/null
	as_owner "$bin/pg_ctl" -D "$home/data" -o "-k $home -c listen_addresses=''" -l "$home/log" -w start >/dev/null
	as_owner "$bin/createdb" -h "$home" bank
	as_owner "$bin/psql" -h "$home" -q bank -c 'CREATE TABLE bank (balance bigint); INSERT INTO bank VALUES (0)'
	as_owner sh -c "cat >$home/payment.sql" <<-SQL
		BEGIN;
		UPDATE bank SET balance = balance + 1;
		SELECT pg_sleep(0.003) AS audit;
		\\sleep 5 ms
		END;
	SQL
	as_owner sh -c "{ echo '\\\\sleep 5 ms'; grep -v sleep.5 $home/payment.sql; } >$home/ask-first.sql"
	;;
load)
	script=payment
	[ "$2" != --ask-first ] || script=ask-first
	as_owner "$bin/pgbench" -h "$home" -n -c 4 -j 4 -T "${BANK_SECONDS:-5}" -f "$home/$script.sql" bank 2>&1 |
		sed -n 's/^tps = \([0-9]*\).*/\1 payments a second/p'
	;;
stop)
	as_owner "$bin/pg_ctl" -D "$home/data" -m fast stop >/dev/null
	rm -rf "$home"
	;;
*)
	echo "usage: bank.sh start | load [--ask-first] | stop" >&2
	exit 2
	;;
esac
