//! Who may know whom, read from the source.

use std::path::Path;

/// What each module may name, directly or through those it may name.
const LAYERS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("format", &["error"]),
    ("kernel", &["memory", "error"]),
    ("memory", &["format", "kernel", "kv", "error"]),
    ("kv", &["error"]),
    ("sampler", &["error"]),
    ("text", &["error"]),
    ("weights", &["format", "memory", "error"]),
    ("program", &["memory", "kernel", "format"]),
    ("kernels", &["program", "sampler"]),
    ("cache", &["error"]),
    ("gpu", &["program", "cache"]),
    ("attention", &["kv", "kernels"]),
    ("prefix", &["kv"]),
    ("constrain", &["sampler", "text", "error"]),
    ("speculation", &[]),
    ("session", &["attention", "kv", "sampler", "constrain", "speculation"]),
    ("models", &["kernels", "weights", "format"]),
    ("engine", &["models", "gpu", "attention", "prefix", "session"]),
    ("scheduler", &["engine", "text", "constrain"]),
    ("bench", &["engine"]),
    ("eval", &["engine"]),
    ("fetch", &["error"]),
    ("chat", &["engine", "text", "constrain"]),
    ("agent", &["chat", "engine", "text"]),
    ("mcp", &["agent"]),
    ("cli", &["agent", "bench", "chat", "eval", "fetch", "mcp", "server"]),
    ("server", &["chat", "scheduler", "text"]),
];

fn may_name(from: &str, to: &str, seen: &mut Vec<String>) -> bool {
    if from == to {
        return true;
    }
    if seen.iter().any(|s| s == from) {
        return false;
    }
    seen.push(from.into());
    let below = LAYERS.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, below)| below);
    below.iter().any(|b| may_name(b, to, seen))
}

/// Every file of the crate: path and code without comments.
fn files(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let code = std::fs::read_to_string(&path).unwrap();
            let lines = code.lines().map(|l| l.split("//").next().unwrap_or_default());
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            found.push((name, lines.collect::<Vec<_>>().join("\n")));
        }
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The modules that code names through `crate::`.
fn named(code: &str) -> Vec<String> {
    let identifier = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => names.push(identifier(rest)),
            Some(list) => {
                // Names at depth 0 of the braces: each begins a path.
                let mut depth = 0;
                let mut start = true;
                for (i, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && c.is_alphabetic() => {
                            names.push(identifier(&list[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

#[test]
fn modules_name_only_those_below_them() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    for (file, code) in &all {
        let module = file.split(['/', '.']).next().unwrap();
        if module == "lib" || module == "main" {
            continue;
        }
        assert!(LAYERS.iter().any(|(name, _)| *name == module), "src/{file}: {module} is in no layer");
        for name in named(code) {
            let to = if ["Error", "Result"].contains(&name.as_str()) { "error" } else { &name };
            assert!(may_name(module, to, &mut vec![]), "src/{file}: {module} may not know {to}");
        }
    }
}

#[test]
fn only_gpu_names_wgpu() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    assert!(all.iter().any(|(file, code)| file == "gpu.rs" && code.contains("wgpu::")));
    for (file, code) in &all {
        assert!(file == "gpu.rs" || file.starts_with("gpu/") || !code.contains("wgpu::"), "src/{file} names wgpu");
    }
}

#[test]
fn names_are_found_in_every_form() {
    assert_eq!(
        named("use crate::{Error, kernel::{A, B}, memory};\nfn f() -> crate::kv::PAGE"),
        ["Error", "kernel", "memory", "kv"]
    );
    assert!(may_name("engine", "memory", &mut vec![]) && !may_name("memory", "program", &mut vec![]));
}

#[test]
fn a_kernel_is_three_files_of_one_name() {
    for kernel in farpast::kernels::ALL {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for file in ["shaders/NAME.wgsl", "src/kernels/NAME.rs", "kernels-tests/NAME.rs"] {
            let file = file.replace("NAME", kernel.name);
            assert!(root.join(&file).is_file(), "{file} is missing");
        }
    }
    let shaders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders")).unwrap();
    let files = shaders.map(|e| e.unwrap().path()).filter(|p| p.is_file());
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_string();
        assert!(farpast::kernels::ALL.iter().any(|k| k.name == name), "shaders/{name}.wgsl is no kernel");
    }
}
