# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/demo and scripts/test, from the top of the checkout:
#
#   setup demo    what recording and looking need: bcc, a virtual environment, a C compiler for the workload
#   setup test    the same, perf, what perf's own Python needs, and the tools of the "test" extra
#
# Only what is missing is installed, each with its reason, and nothing is touched when all is there (a
# second run takes well under a second and no network). What cannot be installed is not fatal here but for
# the virtual environment: `missing demo` and `missing test` name the rest, and the caller decides.
#
# The virtual environment is made from the system's /usr/bin/python3 and sees its packages, because bcc
# exists for that interpreter only.

SYSTEM_PYTHON=/usr/bin/python3
VENV=.venv

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$(basename "$0"): $*"
    exit 1
}

# as_root COMMAND...: through sudo only where needed; 127 where there is no sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        return 127
    fi
}

# can_be_root: root, or a sudo that lets this user in (it may ask for a password).
can_be_root() { as_root true 2>/dev/null; }

is_ubuntu() { grep -qs '^ID=ubuntu' /etc/os-release; }

# system_python_finds MODULE...: without importing them, which would take longer than all else here.
system_python_finds() {
    "$SYSTEM_PYTHON" -I -c '
import sys
from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in sys.argv[1:]))' "$@" 2>/dev/null
}

has_compiler() { echo '#include <pthread.h>' | gcc -E - >/dev/null 2>&1; }

has_command() { command -v "$1" >/dev/null 2>&1; }

# perf_package: where the distribution keeps perf. Ubuntu's fits one kernel version, hence two packages.
perf_package() {
    if is_ubuntu; then echo "linux-tools-generic linux-tools-$(uname -r)"; else echo linux-perf; fi
}

# needs LEVEL: what is missing, a line each: packages, "|", reason.
needs() {
    system_python_finds venv ensurepip || echo "python3-venv|for the virtual environment"
    system_python_finds bcc || echo "python3-bpfcc|to compile and load the BPF programs"
    has_compiler || echo "gcc libc6-dev|to build the workload"
    [ "$1" = test ] || return 0
    perf --version >/dev/null 2>&1 || echo "$(perf_package)|for the tests that compare with perf"
    has_command g++ || echo "g++|to build the C++ programs of the tests"
    has_command gdb || echo "gdb|for its backtraces, which ours must equal"
    ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 || echo "postgresql|for a server whose waits are looked at"
    has_command readelf || echo "binutils|for a second opinion on ELF files"
    has_command dot || echo "graphviz|to draw call graphs"
    has_command man || echo "man-db|to see that it finds the man pages"
    has_command asciidoctor || echo "asciidoctor|for the man pages"
    has_command zsh || echo "zsh|to try completion in it"
    for module in numpy:numpy elftools:pyelftools; do
        system_python_finds "${module%:*}" ||
            echo "python3-${module#*:}|for scripts/offcpu.py inside perf's own Python"
    done
}

# larger: what a few tests need, in the same form; 50 MB to 300 MB each. .ci/run installs it; scripts/test alone
# leaves those tests out and names it.
larger() {
    has_command chromedriver || echo "chromium chromium-driver|to look at pictures in a browser"
    has_command go || echo "golang-go|for Go's own reader of pprof files"
    has_command node || echo "nodejs|for stacks of JavaScript, and the Firefox Profiler's own code"
    has_command javac || echo "default-jdk-headless|for stacks of Java"
}

# package_names: of lines as above, on one line.
package_names() { sed 's/|.*//' | tr '\n' ' ' | sed 's/ $//'; }

# missing LEVEL: the packages of `needs`, on one line.
missing() { needs "$1" | package_names; }

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" >/dev/null
}

# All at once if the package lists are good; else with fresh lists, each alone, so that one that this
# distribution does not have keeps none of the others away.
apt_install_all() {
    # shellcheck disable=SC2086  # package names, split on purpose
    apt_install $1 2>/dev/null && return 0
    as_root apt-get -o DPkg::Lock::Timeout=300 update -qq || say "apt-get update failed; trying with the package lists that are here"
    for package in $1; do
        apt_install "$package" || say "could not install $package"
    done
}

# system_packages LINES: installs what `needs` or `larger` names.
system_packages() {
    [ -n "$1" ] || return 0
    packages=$(echo "$1" | package_names)
    if ! command -v apt-get >/dev/null 2>&1; then
        say "No apt-get here; install with your package manager what Debian calls: $packages"
    elif ! can_be_root; then
        say "Neither root nor sudo; ask for these packages to be installed: $packages"
    else
        say "Installing $(echo "$1" | sed 's/\(.*\)|\(.*\)/\1 (\2)/' | tr '\n' ',' | sed 's/,$//; s/,/, /g')"
        apt_install_all "$packages"
    fi
}

# The interpreter must be the system's of now: an upgrade of the distribution leaves a venv behind broken.
venv_is_sound() {
    [ -x "$VENV/bin/python" ] &&
        grep -qs '^include-system-site-packages = true' "$VENV/pyvenv.cfg" &&
        [ "$("$VENV/bin/python" -I -c 'import sys; print(sys.version)' 2>/dev/null)" = \
            "$("$SYSTEM_PYTHON" -I -c 'import sys; print(sys.version)')" ]
}

make_venv() {
    [ -x "$SYSTEM_PYTHON" ] || die "$SYSTEM_PYTHON is missing: install python3"
    "$SYSTEM_PYTHON" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "needs Python 3.11 or newer (Debian 12, Ubuntu 24.04); here is $("$SYSTEM_PYTHON" --version)"
    venv_is_sound && return 0
    system_python_finds venv ensurepip || die "cannot make a virtual environment: install python3-venv"
    say "Making the virtual environment $VENV"
    "$SYSTEM_PYTHON" -m venv --clear --system-site-packages "$VENV" || die "cannot make $VENV"
}

# The mark of an installation is the checksum of the file that says what to install; "test" includes "demo".
is_installed() {
    for level in "$1" test; do
        [ "$(cat "$VENV/installed-$level" 2>/dev/null)" = "$(cksum <pyproject.toml)" ] && return 0
    done
    return 1
}

python_packages() {
    is_installed "$1" && return 0
    what=.
    [ "$1" = test ] && what='.[test]'
    say "Installing $what into $VENV"
    if "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e "$what"; then
        cksum <pyproject.toml >"$VENV/installed-$1"
    elif "$VENV/bin/perf-offcpu" --help >/dev/null 2>&1; then
        say "pip failed; going on with what $VENV holds already"
    else
        die "pip could not install what pyproject.toml names (see above); a network or PIP_FIND_LINKS helps"
    fi
}

setup() {
    system_packages "$(needs "$1")"
    make_venv
    python_packages "$1"
}
