# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/demo and scripts/test, from the top of the checkout:
#
#   setup demo    for recording and reporting: bcc, a virtual environment, a C compiler for the workload
#   setup test    also perf, the packages of perf's own Python, and the tools of the "test" extra
#
# Only missing packages are installed, each with its reason; a second run takes well under a second and no
# network. A package that cannot be installed is not fatal here: `missing demo` and `missing test` name it,
# and the caller decides. A missing virtual environment is fatal.
#
# The virtual environment is made from the system's /usr/bin/python3 and sees its packages, because bcc
# exists only for that interpreter.

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

# can_be_root: root, or sudo (which may ask for a password).
can_be_root() { as_root true 2>/dev/null; }

is_ubuntu() { grep -qs '^ID=ubuntu' /etc/os-release; }

# system_python_finds MODULE...: does not import them, which would take longer than all other steps.
system_python_finds() {
    "$SYSTEM_PYTHON" -I -c '
import sys
from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in sys.argv[1:]))' "$@" 2>/dev/null
}

has_compiler() { echo '#include <pthread.h>' | gcc -E - >/dev/null 2>&1; }

has_command() { command -v "$1" >/dev/null 2>&1; }

# perf_package: the distribution's packages of perf. Ubuntu's is for one kernel version, hence two.
perf_package() {
    if is_ubuntu; then echo "linux-tools-generic linux-tools-$(uname -r)"; else echo linux-perf; fi
}

# needs LEVEL: missing packages, one line each: packages, "|", reason.
needs() {
    system_python_finds venv ensurepip || echo "python3-venv|for the virtual environment"
    system_python_finds bcc || echo "python3-bpfcc|to compile and load the BPF programs"
    has_compiler || echo "gcc libc6-dev|to build the workload"
    [ "$1" = test ] || return 0
    perf --version >/dev/null 2>&1 || echo "$(perf_package)|for the tests that compare with perf"
    has_command g++ || echo "g++|to build the C++ programs of the tests"
    has_command ss || echo "iproute2|for the tests between two network namespaces"
    has_command nft || [ -x /usr/sbin/nft ] || echo "nftables|to lose packets there"
    has_command mkfs.ext4 || [ -x /usr/sbin/mkfs.ext4 ] || echo "e2fsprogs|to make a file system that is frozen"
    has_command gdb || echo "gdb|to compare its backtraces with ours"
    has_command stress-ng || echo "stress-ng|for threads that switch, fork and want locks without end"
    ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 || echo "postgresql|for the waits of a database server"
    has_command nginx || [ -x /usr/sbin/nginx ] || echo "nginx|for the waits of a proxy"
    has_command readelf || echo "binutils|to compare readelf with our ELF reader"
    has_command dot || echo "graphviz|to draw call graphs"
    has_command openssl || echo "openssl|to make certificates for servers that profiles are pushed to"
    has_command make || echo "make|for the guide's investigation of a build"
    has_command systemd-analyze || echo "systemd|to check the unit of the agent"
    has_command man || echo "man-db|to check that man finds the pages"
    has_command asciidoctor || echo "asciidoctor|for the man pages"
    has_command zsh || echo "zsh|to test completion in it"
    for module in numpy:numpy elftools:pyelftools; do
        system_python_finds "${module%:*}" ||
            echo "python3-${module#*:}|for scripts/offcpu.py inside perf's own Python"
    done
}

# larger: packages of a few tests, in the same form, 50 MB to 300 MB each. .ci/run installs them; scripts/test
# leaves these tests out and names the packages.
larger() {
    has_command chromedriver || echo "chromium chromium-driver|to open pictures in a browser"
    has_command go || echo "golang-go|for Go's own reader of pprof files, and goroutines"
    has_command node || echo "nodejs|for stacks of JavaScript, and the Firefox Profiler's own code"
    has_command javac || echo "default-jdk-headless|for stacks of Java"
}

# package_names: the packages of such lines, on one line.
package_names() { sed 's/|.*//' | tr '\n' ' ' | sed 's/ $//'; }

# missing LEVEL: the packages of `needs`, on one line.
missing() { needs "$1" | package_names; }

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" >/dev/null
}

# apt_install_all PACKAGES: all at once if the package lists are current; else one by one with new lists, so that
# a package that this distribution lacks does not prevent the others.
apt_install_all() {
    # shellcheck disable=SC2086  # package names, split on purpose
    apt_install $1 2>/dev/null && return 0
    as_root apt-get -o DPkg::Lock::Timeout=300 update -qq || say "apt-get update failed; using the present package lists"
    for package in $1; do
        apt_install "$package" || say "could not install $package"
    done
}

# system_packages LINES: installs the packages of `needs` or `larger`.
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

# The interpreter must be the present one of the system: an upgrade of the distribution breaks a venv.
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

# An installation is marked by the checksum of pyproject.toml; "test" includes "demo".
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
        say "pip failed; continuing with the present packages of $VENV"
    else
        die "pip could not install the dependencies (see above); it needs a network or PIP_FIND_LINKS"
    fi
}

setup() {
    system_packages "$(needs "$1")"
    make_venv
    python_packages "$1"
}
