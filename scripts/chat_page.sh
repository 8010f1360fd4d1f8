#!/usr/bin/env bash
# Uses the page of `farpast serve` in a headless browser, as a reader would; installs Debian's Chromium first where there is none.
#
# usage: scripts/chat_page.sh FARPAST          CHROMIUM=PATH: this browser
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/chat_page.sh FARPAST" >&2 && exit 2; }
find_browser() {
    local name
    for name in ${CHROMIUM:+"$CHROMIUM"} chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return
    done
    return 1
}

if ! browser=$(find_browser); then
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null ||
        { echo "chat_page: no Chromium: as root start this script, or install it and set CHROMIUM" >&2 && exit 1; }
    export DEBIAN_FRONTEND=noninteractive
    apt=(apt-get -qq -o DPkg::Lock::Timeout=600)
    # The shell has no windows, and with them fewer packages; older releases have it not.
    install() { "${apt[@]}" install -y --no-install-recommends "$1" </dev/null >/dev/null 2>&1; }
    echo "chat_page: installing Chromium (100 MB)" >&2
    install chromium-headless-shell || { "${apt[@]}" update >&2 && install chromium-headless-shell; } || install chromium ||
        { echo "chat_page: apt-get could not install Chromium" >&2 && exit 1; }
    browser=$(find_browser)
fi
command -v node >/dev/null || { echo "chat_page: node is needed; install Node.js 18 or later" >&2 && exit 1; }
exec node "$(dirname "$0")/chat_page.mjs" "$1" "$browser"
