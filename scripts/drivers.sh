#!/usr/bin/env bash
# Installs the software Vulkan drivers that the tests run on. Quick when they are there already.
#
#   lavapipe     Mesa's, from the distribution; on Debian 12 from its backports, as the Mesa 22 of the release itself is
#                ten times slower
#   SwiftShader  Chromium's, out of Debian's package into the user's cache folder: close to the smallest device that
#                WebGPU allows (no f16, 10 storage buffers, 256 invocations); the Vulkan validation layer comes with it
#   coopmat      a lavapipe that has cooperative matrices: Mesa's of Debian 13's backports, with all that it needs down to its
#                libc, unpacked into the user's cache folder; nothing is installed
#
# usage: scripts/drivers.sh [lavapipe|swiftshader|coopmat]...      the first two if none is named
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/drivers
oldest_mesa=24.1
oldest_mesa_coopmat=26.1
apt=(apt-get -qq -o DPkg::Lock::Timeout=600)
export DEBIAN_FRONTEND=noninteractive

say() { echo "drivers: $*" >&2; }
fail() {
    say "$*"
    exit 1
}
is_root() { [ "$(id -u)" -eq 0 ]; }
has_apt() { command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; }
at_least() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$2"; }
installed() { dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n '1s/^installed //p' || true; }
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: //p' | grep -vF '(none)' || true; }

# Whether the Vulkan loader and lavapipe's manifest are in the places where with-driver.sh looks for them.
has_lavapipe() {
    local libraries
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
    [[ $libraries == *libvulkan.so.1* ]] && compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json' >/dev/null
}

# Other processes may hold apt's lock on its lists, and a source that does not answer may not be the one needed:
# what counts is whether the packages can be had afterwards.
update() {
    local try
    for try in 1 2 3; do
        "${apt[@]}" update >&2 && return
        say "apt-get update failed (try $try)"
        sleep $((try * 5))
    done
}

# The URI that this machine takes a Debian suite from, out of its one-line or deb822 sources.
debian_uri() {
    local sources=()
    mapfile -t sources < <(compgen -G '/etc/apt/sources.list'; compgen -G '/etc/apt/sources.list.d/*.list')
    awk -v suite="$1" '$1 == "deb" { sub(/\[[^]]*\]/, ""); if ($3 == suite) { print $2; exit } }' /dev/null "${sources[@]}"
    mapfile -t sources < <(compgen -G '/etc/apt/sources.list.d/*.sources')
    awk -v suite="$1" '
        function flush() { if (enabled && found && uri != "") print uri; uri = ""; found = 0; enabled = 1 }
        FNR == 1 || /^[[:space:]]*$/ { flush() }
        tolower($1) == "uris:" { uri = $2 }
        tolower($1) == "enabled:" { enabled = tolower($2) != "no" }
        tolower($1) == "suites:" { for (i = 2; i <= NF; i++) if ($i == suite) found = 1 }
        END { flush() }' /dev/null "${sources[@]}"
}

add_backports() {
    local release=$1 uris file=/etc/apt/sources.list.d/farpast-backports.list
    [[ $(apt-cache policy) == *n=$release-backports* ]] && return
    uris=$(debian_uri "$release")
    [ -n "$uris" ] || fail "no apt source of Debian $release found; add its backports suite by hand and start again"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${uris%%$'\n'*} $release-backports main" >"$file"
    say "added $release-backports to the apt sources in $file"
    update
}

lavapipe() {
    local suite=() ID='' VERSION_CODENAME=''
    if has_lavapipe && { ! has_apt || at_least "$(installed mesa-vulkan-drivers)" "$oldest_mesa"; }; then return; fi
    if ! has_apt || ! is_root; then
        if has_lavapipe; then
            say "this lavapipe is older than Mesa $oldest_mesa: the tests will be slow"
            return
        fi
        fail "no lavapipe: as root start this script, or install the Vulkan loader and Mesa's Vulkan drivers $oldest_mesa or later
  Debian, Ubuntu  apt-get install libvulkan1 mesa-vulkan-drivers     (Debian 12: from bookworm-backports)
  Fedora          dnf install vulkan-loader mesa-vulkan-drivers
  Arch            pacman -S vulkan-icd-loader vulkan-swrast"
    fi
    update
    if ! at_least "$(candidate mesa-vulkan-drivers)" "$oldest_mesa"; then
        # shellcheck disable=SC1091
        . /etc/os-release
        if [ "$ID" = debian ]; then
            add_backports "$VERSION_CODENAME"
            suite=(-t "$VERSION_CODENAME-backports")
        fi
    fi
    say "installing mesa-vulkan-drivers"
    install() { "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null || fail "apt-get could not install $*"; }
    install "${suite[@]}" mesa-vulkan-drivers
    has_lavapipe || install libvulkan1 # the release's own will do
    has_lavapipe || fail "the packages are installed, yet the Vulkan loader or lavapipe's manifest is not where it should be"
    at_least "$(installed mesa-vulkan-drivers)" "$oldest_mesa" ||
        say "Mesa $(installed mesa-vulkan-drivers) is the newest to be had here: the tests will be slow"
}

# Makes the folder $work, which is gone in the end: on the file system of the cache, so that renaming what becomes of it is atomic.
make_work() {
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/.fetch.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
}

swiftshader() {
    local target=$cache/swiftshader work from folder package
    [ -f "$target/vk_swiftshader_icd.json" ] && return
    make_work
    from=''
    for folder in /usr/lib/chromium /usr/lib64/chromium-browser /opt/google/chrome; do
        if [ -f "$folder/libvk_swiftshader.so" ] && [ -f "$folder/vk_swiftshader_icd.json" ]; then from=$folder; fi
    done
    if [ -z "$from" ]; then
        has_apt || fail "no SwiftShader: install Chromium, which brings it"
        ! is_root || [ -n "$(candidate chromium)" ] || update
        # Its files moved from one package to the other in 2026.
        for package in chromium-common chromium; do
            [ -n "$(candidate "$package")" ] || continue
            say "fetching $package (80 MB or less) for SwiftShader"
            if ! (cd "$work" && "${apt[@]}" -o APT::Sandbox::User=root download "$package" >&2); then
                is_root || fail "could not download $package; as root start this script, or apt-get update"
                update
                (cd "$work" && "${apt[@]}" -o APT::Sandbox::User=root download "$package" >&2)
            fi
            dpkg-deb --fsys-tarfile "$work/$package"_*.deb |
                tar -x -C "$work" --wildcards --no-anchored 'usr/lib/chromium/*vk_swiftshader*' 'usr/lib/chromium/libVkLayer_khronos*' 2>/dev/null || true
            from=$work/usr/lib/chromium
            [ ! -f "$from/libvk_swiftshader.so" ] || break
        done
    fi
    [ -f "$from/libvk_swiftshader.so" ] || fail "no SwiftShader: no package of this distribution has it; install Chromium"
    mkdir "$work/new"
    cp "$from/libvk_swiftshader.so" "$from/vk_swiftshader_icd.json" "$work/new"
    if [ -f "$from/libVkLayer_khronos_validation.so" ]; then
        cp "$from/libVkLayer_khronos_validation.so" "$work/new"
        cat >"$work/new/VkLayer_khronos_validation.json" <<'JSON'
{
  "file_format_version": "1.2.0",
  "layer": {
    "name": "VK_LAYER_KHRONOS_validation",
    "type": "GLOBAL",
    "library_path": "./libVkLayer_khronos_validation.so",
    "api_version": "1.4.350",
    "implementation_version": "1",
    "description": "Khronos Validation Layer",
    "instance_extensions": [
      { "name": "VK_EXT_debug_report", "spec_version": "9" },
      { "name": "VK_EXT_debug_utils", "spec_version": "1" },
      { "name": "VK_EXT_validation_features", "spec_version": "2" },
      { "name": "VK_EXT_layer_settings", "spec_version": "2" }
    ]
  }
}
JSON
    fi
    rm -rf "$target"
    mv "$work/new" "$target"
}

coopmat() {
    local target=$cache/coopmat keyring=/usr/share/keyrings/debian-archive-keyring.gpg release=trixie
    local work uris options suite package version ID='' VERSION_CODENAME=''
    [ -f "$target/lvp_icd.json" ] && return
    has_apt || fail "coopmat comes out of Debian packages, which takes apt and dpkg"
    # shellcheck disable=SC1091
    . /etc/os-release
    uris=$(debian_uri "$VERSION_CODENAME")
    { [ "$ID" = debian ] && [ -n "$uris" ]; } || fail "no apt source of Debian found to take Mesa $oldest_mesa_coopmat from"
    make_work
    mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/new"
    for suite in "$release" "$release-backports"; do
        echo "deb [signed-by=$keyring] ${uris%%$'\n'*} $suite main"
    done >"$work/sources.list"
    : >"$work/status" # nothing is installed there, so that all that is needed comes along
    options=(-o "Dir::State=$work" -o "Dir::State::lists=$work/lists" -o "Dir::State::status=$work/status"
        -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives"
        -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=-
        -o APT::Sandbox::User=root -o Acquire::Languages=none)
    say "fetching Mesa of $release-backports and what it needs (65 MB)"
    "${apt[@]}" "${options[@]}" update >&2 || fail "apt-get could not read $release and its backports"
    "${apt[@]}" "${options[@]}" install -y --download-only --no-install-recommends -t "$release-backports" \
        mesa-vulkan-drivers libvulkan1 libc6 </dev/null >&2 || fail "apt-get could not fetch Mesa of $release-backports"
    version=$(dpkg-deb -f "$work"/archives/mesa-vulkan-drivers_*.deb Version)
    at_least "$version" "$oldest_mesa_coopmat" || fail "Mesa $version of $release-backports has no cooperative matrices"
    for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
    rm -f "$work"/root/usr/lib/*/libvulkan_[!l]*.so
    mv "$work"/root/usr/lib/*-linux-gnu* "$work/new/lib"
    # By its name alone the library is found where with-driver.sh has libraries looked for.
    sed 's|"[^"]*/\(libvulkan_lvp.so\)"|"\1"|' "$work"/root/usr/share/vulkan/icd.d/lvp_icd*.json >"$work/new/lvp_icd.json"
    rm -rf "$target"
    mv "$work/new" "$target"
}

[ $# -gt 0 ] || set -- lavapipe swiftshader
for driver; do
    case $driver in
    lavapipe | swiftshader | coopmat) ("$driver") ;; # each cleans up when its shell ends
    *) fail "unknown driver $driver (lavapipe, swiftshader, coopmat)" ;;
    esac
done
