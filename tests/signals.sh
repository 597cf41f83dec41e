# tests/signals.sh -- sourced by tests of ranks that crash: sanitizers leave these signals to the crash handler.
# shellcheck shell=sh
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_abort=0"
