//! Models of the Hugging Face hub, in the cache that its own tools use too.
//!
//! Of a repository there is in the cache (`huggingface_hub`, "Understand caching"): `blobs/`, contents by their hash;
//! `snapshots/COMMIT/NAME`, links to those; `refs/main`, the commit, written when all that was asked for is complete.
//! What the server says is untrusted: names stay within the cache, sizes are checked, and hashes where the hub has them.

mod http;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use self::http::{Client, Failure};
use super::{POLL, Progress, hexadecimal};
use crate::error::{Error, Result};

/// A hub, and where its files are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Address of the server, such as `https://huggingface.co`.
    pub endpoint: String,
    /// The folder of all repositories.
    pub cache: PathBuf,
    /// Proves who asks, for private and gated repositories. It is sent to the endpoint alone.
    pub token: Option<String>,
    /// Take what is in the cache and ask nobody.
    pub offline: bool,
    /// The longest wait for a connection, for an answer, and for more of it.
    pub timeout: Duration,
}

/// A file of a repository.
struct Entry {
    name: String,
    bytes: u64,
    /// Name of the blob.
    hash: String,
    /// Whether `hash` is the SHA-256 of the contents, as of large files; of others it is git's.
    sha256: bool,
}

/// Files of a repository at one commit.
struct Snapshot {
    commit: String,
    files: Vec<Entry>,
}

/// One call of [`Hub::pull`].
struct Pull<'a> {
    hub: &'a Hub,
    repository: &'a str,
    quantisation: Option<&'a str>,
    /// Of the repository, in the cache.
    folder: PathBuf,
    client: Client,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    /// Of all files: complete, and in all.
    bytes: (u64, u64),
}

/// What is taken when no quantisation is asked for.
const DEFAULT: &str = "Q4_K_M";
const INDEX: &str = "model.safetensors.index.json";
/// What a folder of safetensors needs beside the weights, as far as the repository has it.
const DESCRIPTION: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    INDEX,
];
/// Bytes of the server's list of files, and of an index of tensors.
const MAX_JSON: u64 = 32 << 20;
/// Attempts in a row that bring nothing new.
const TRIES: u32 = 3;

const NETWORK: &str = "check the network and try again, or give a file";
const SPACE: &str = "free some space or set HF_HOME to a folder on another disk";

impl Hub {
    /// As the environment says: HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_HUB_OFFLINE.
    pub fn from_env() -> Result<Hub> {
        Hub::from_variables(|name| std::env::var(name).ok())
    }

    /// As variables say that `get` looks up.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Hub> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let home = match (get("HF_HOME"), get("XDG_CACHE_HOME")) {
            (Some(home), _) => home.into(),
            (None, Some(cache)) => Path::new(&cache).join("huggingface"),
            (None, None) => match dirs::home_dir() {
                Some(home) => home.join(".cache/huggingface"),
                None => return Err(Error::request("cache folder", "the user's, or HF_HOME set", "neither")),
            },
        };
        let file = get("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let token = get("HF_TOKEN").or_else(|| fs::read_to_string(file).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::request("HF_TOKEN", "printable ASCII without spaces", "other characters"));
        }
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Ok(Hub {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: get("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            token,
            offline: get("HF_HUB_OFFLINE")
                .is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())),
            timeout: Duration::from_secs(10),
        })
    }

    /// The path of the model `ORG/REPO` or `ORG/REPO:QUANTISATION`, fetched unless the cache has it.
    ///
    /// From a repository with GGUF files it is the one of the quantisation, in any case of letters; without one, Q4_K_M
    /// or else the first. Otherwise it is the folder of the safetensors checkpoint. If the server cannot be reached, what
    /// is in the cache will do. `progress` may break off; the next call goes on from there.
    pub fn pull(&self, model: &str, mut progress: impl FnMut(Progress) -> ControlFlow<()>) -> Result<PathBuf> {
        let (repository, quantisation) = match model.split_once(':') {
            Some((repository, quantisation)) => (repository, Some(quantisation)),
            None => (model, None),
        };
        let word = |word: &str| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !word.is_empty() && word.len() <= 96 && word.bytes().all(letter) && !word.starts_with('.')
        };
        let parts: Vec<_> = repository.split('/').collect();
        if parts.len() != 2 || !parts.into_iter().all(word) || quantisation.is_some_and(str::is_empty) {
            return Err(Error::request("model of the hub", "ORG/REPO or ORG/REPO:QUANTISATION", format!("{model:?}")));
        }
        Pull {
            hub: self,
            repository,
            quantisation,
            folder: self.cache.join(format!("models--{}", repository.replace('/', "--"))),
            client: Client::new(self.endpoint.starts_with("https:"), self.token.clone(), self.timeout),
            progress: &mut progress,
            bytes: (0, 0),
        }
        .run()
    }
}

impl Pull<'_> {
    fn run(mut self) -> Result<PathBuf> {
        if self.hub.offline {
            return self.cached().map_err(|why| self.failed(why, "unset HF_HUB_OFFLINE to fetch it"));
        }
        let snapshot = match self.list() {
            Ok(json) => self.snapshot(&json)?,
            Err(Failure::Unreachable(why)) => {
                return self.cached().map_err(|_| self.failed(format!("{}: {why}", self.hub.endpoint), NETWORK));
            }
            Err(failure) => return Err(self.failure(failure, &self.hub.endpoint)),
        };
        let names: BTreeSet<&str> = snapshot.files.iter().map(|file| file.name.as_str()).collect();
        let path = self.folder.join("snapshots").join(&snapshot.commit);
        let path = match self.gguf(&names).map_err(|why| self.failed(why, "choose another"))? {
            Some(name) => {
                self.download_all(&snapshot, &[name])?;
                path.join(name)
            }
            None => {
                let description: Vec<_> = DESCRIPTION.into_iter().filter(|name| names.contains(name)).collect();
                self.download_all(&snapshot, &description)?;
                let weights = safetensors(&names, &path).map_err(|why| self.failed(why, "choose another"))?;
                self.download_all(&snapshot, &weights.iter().map(String::as_str).collect::<Vec<_>>())?;
                path
            }
        };
        let main = self.folder.join("refs/main");
        fs::create_dir_all(self.folder.join("refs"))
            .and_then(|()| fs::write(&main, &snapshot.commit))
            .map_err(|e| self.unwritable(e))?;
        Ok(path)
    }

    /// What is asked for, as the cache has it, or why it does not.
    fn cached(&self) -> Result<PathBuf, String> {
        let absent = |_| format!("{} is not in the cache", self.repository);
        let commit = fs::read_to_string(self.folder.join("refs/main")).map_err(absent)?;
        let commit = commit.trim();
        if !is_hash(commit) {
            return Err("refs/main in the cache names no commit".into());
        }
        let path = self.folder.join("snapshots").join(commit);
        let mut names = BTreeSet::new();
        find_files(&path, "", &mut names).map_err(|e| format!("{}: {e}", path.display()))?;
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        if let Some(name) = self.gguf(&names)? {
            return Ok(path.join(name));
        }
        let missing = |name: &&str| !names.contains(name);
        let weights = safetensors(&names, &path)?;
        let needed = ["config.json", "tokenizer.json"].into_iter().chain(weights.iter().map(String::as_str));
        match needed.filter(missing).collect::<Vec<_>>() {
            missing if missing.is_empty() => Ok(path),
            missing => Err(format!("not in the cache: {}", missing.join(", "))),
        }
    }

    /// What the server says of the repository.
    fn list(&mut self) -> Result<Vec<u8>, Failure> {
        let url = format!("{}/api/models/{}/revision/main?blobs=true", self.hub.endpoint, self.repository);
        let mut go_on = || (self.progress)(Progress::Downloading(0, 0));
        let answer = self.client.get(&url, 0, &mut go_on)?;
        let mut json = vec![];
        while let Some(bytes) = http::next(&answer.bytes, &mut go_on)? {
            json.extend(bytes?);
            if json.len() as u64 > MAX_JSON {
                return Err(Failure::Unreachable(format!("the list of files is longer than {MAX_JSON} bytes")));
            }
        }
        Ok(json)
    }

    fn snapshot(&self, json: &[u8]) -> Result<Snapshot> {
        let wrong = |what: &str| self.failed(format!("{} sent no list of files: {what}", self.hub.endpoint), NETWORK);
        let json: Json = serde_json::from_slice(json).map_err(|e| wrong(&e.to_string()))?;
        let commit = json["sha"].as_str().filter(|commit| is_hash(commit)).ok_or_else(|| wrong("no commit"))?;
        let files = json["siblings"].as_array().ok_or_else(|| wrong("no siblings"))?;
        let entry = |file: &Json| {
            let name = file["rfilename"].as_str()?;
            let large = file["lfs"]["sha256"].as_str();
            let hash = large.or(file["blobId"].as_str()).filter(|hash| is_hash(hash))?;
            let bytes = file["size"].as_u64()?;
            Some(Entry { name: name.into(), bytes, hash: hash.into(), sha256: large.is_some() })
        };
        let entry = |file| entry(file).ok_or_else(|| wrong("a file without name, size or hash"));
        let files: Vec<Entry> = files.iter().map(entry).collect::<Result<_>>()?;
        match files.iter().find(|file| !is_plain(&file.name)) {
            Some(file) => Err(wrong(&format!("expected names of files within a folder, found {:?}", file.name))),
            None => Ok(Snapshot { commit: commit.into(), files }),
        }
    }

    /// The GGUF file that is asked for; none if there are no such files and no quantisation is asked for.
    fn gguf<'n>(&self, names: &BTreeSet<&'n str>) -> Result<Option<&'n str>, String> {
        // Projectors of images and importance matrices are GGUF files as well.
        let is_model = |name: &str| name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix");
        let files: Vec<&str> = names.iter().copied().filter(|name| is_model(&name.to_lowercase())).collect();
        let of = |quantisation: &str| files.iter().copied().find(|name| is_of(name, quantisation));
        let found = match self.quantisation {
            Some(quantisation) => of(quantisation).ok_or_else(|| {
                let known: BTreeSet<_> = files.iter().map(|name| quantisation_of(name)).collect();
                match known.is_empty() {
                    true => format!("{} has no GGUF files", self.repository),
                    false => {
                        let known = known.into_iter().collect::<Vec<_>>().join(", ");
                        format!("there is no {quantisation} in {}, which has {known}", self.repository)
                    }
                }
            })?,
            None => match of(DEFAULT).or(files.first().copied()) {
                Some(name) => name,
                None => return Ok(None),
            },
        };
        match is_shard(found) {
            true => Err(format!("{found} is one of several parts, and only whole GGUF files are read")),
            false => Ok(Some(found)),
        }
    }

    fn download_all(&mut self, snapshot: &Snapshot, names: &[&str]) -> Result<()> {
        let wanted = |name: &&str| snapshot.files.iter().find(|file| file.name == *name);
        let files: Vec<&Entry> = names.iter().filter_map(wanted).collect();
        self.bytes.1 += files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        for file in files {
            self.download(snapshot, file)?;
            self.bytes.0 += file.bytes;
        }
        Ok(())
    }

    /// Has `file` in the snapshot, complete.
    fn download(&mut self, snapshot: &Snapshot, file: &Entry) -> Result<()> {
        let is_complete = |path: &Path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == file.bytes);
        let path = self.folder.join("snapshots").join(&snapshot.commit).join(&file.name);
        if is_complete(&path) {
            return Ok(());
        }
        let blobs = self.folder.join("blobs");
        let blob = blobs.join(&file.hash);
        fs::create_dir_all(&blobs).map_err(|e| self.unwritable(e))?;
        let _lock = self.lock(&file.hash)?;
        // Whoever had the lock may have fetched it.
        if is_complete(&path) {
            return Ok(());
        }
        if !is_complete(&blob) {
            let partial = blobs.join(format!("{}.incomplete", file.hash));
            self.receive(snapshot, file, &partial)?;
            fs::rename(&partial, &blob).map_err(|e| self.unwritable(e))?;
        }
        link(&blob, &path, file).map_err(|e| self.unwritable(e))
    }

    /// Writes the contents of `file` to `path`, going on where an earlier attempt broke off, and verifies them.
    fn receive(&mut self, snapshot: &Snapshot, file: &Entry, path: &Path) -> Result<()> {
        let (done, all) = self.bytes;
        let partial =
            Partial::open(path, file.bytes, |bytes| (self.progress)(Progress::Downloading(done + bytes, all)));
        let mut partial = partial.map_err(|failure| self.failure(failure, &file.name))?;
        let name: String = file.name.bytes().map(percent_encoded).collect();
        let url = format!("{}/{}/resolve/{}/{name}", self.hub.endpoint, self.repository, snapshot.commit);
        // Attempts since one that came further than all before it.
        let (mut tries, mut furthest) = (0, partial.bytes);
        while partial.bytes < file.bytes {
            let result = self.append(&url, file, &mut partial);
            tries = if partial.bytes > furthest { 0 } else { tries + 1 };
            furthest = furthest.max(partial.bytes);
            match result {
                Ok(()) if tries == TRIES => {
                    return Err(self.failed(format!("{}: the server sends no more of it", file.name), NETWORK));
                }
                Ok(()) => {}
                Err(Failure::Unreachable(_)) if tries < TRIES => {}
                Err(failure) => return Err(self.failure(failure, &file.name)),
            }
            self.pause(self.hub.timeout / 10 * tries, partial.bytes)?;
        }
        // Only the size is looked at later, so all bytes must be on the disk before the name is.
        partial.file.sync_all().map_err(|e| self.unwritable(e))?;
        let found = hexadecimal(partial.hash);
        if file.sha256 && found != file.hash {
            // If it stays, it fails again.
            let _ = fs::remove_file(path);
            return Err(self.failed(format!("{}: expected SHA-256 {}, found {found}", file.name, file.hash), NETWORK));
        }
        Ok(())
    }

    /// Appends what the server sends in one answer.
    fn append(&mut self, url: &str, file: &Entry, partial: &mut Partial) -> Result<(), Failure> {
        let (done, all) = self.bytes;
        let from = partial.bytes;
        let answer = match self.client.get(url, from, || (self.progress)(Progress::Downloading(done + from, all))) {
            // Range not satisfiable: the file is another.
            Err(Failure::Refused(416, _)) => return Ok(partial.clear()?),
            answer => answer?,
        };
        if answer.start != from {
            partial.clear()?;
        }
        if answer.start != partial.bytes {
            return Err(Failure::Unreachable(format!("asked from byte {from} on, it sent from {}", answer.start)));
        }
        loop {
            let mut go_on = || (self.progress)(Progress::Downloading(done + partial.bytes, all));
            if go_on().is_break() {
                return Err(Failure::Interrupted);
            }
            let Some(bytes) = http::next(&answer.bytes, &mut go_on)? else { return Ok(()) };
            let bytes = bytes?;
            if partial.bytes + bytes.len() as u64 > file.bytes {
                partial.clear()?;
                return Err(Failure::Wrong(format!("expected {} bytes, found more", file.bytes)));
            }
            partial.push(&bytes)?;
        }
    }

    /// Keeps other processes from fetching the same blob, in the place where `huggingface_hub` does.
    fn lock(&mut self, hash: &str) -> Result<File> {
        let folder = self.hub.cache.join(".locks").join(self.folder.file_name().unwrap_or_default());
        let lock = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join(format!("{hash}.lock"))));
        let lock = lock.map_err(|e| self.unwritable(e))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::Error(e)) => return Err(self.unwritable(e)),
                Err(TryLockError::WouldBlock) if (self.progress)(Progress::Waiting).is_break() => {
                    return Err(self.failure(Failure::Interrupted, ""));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(POLL),
            }
        }
    }

    /// Waits, with `bytes` of the current file there.
    fn pause(&mut self, length: Duration, bytes: u64) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < length {
            if (self.progress)(Progress::Downloading(self.bytes.0 + bytes, self.bytes.1)).is_break() {
                return Err(self.failure(Failure::Interrupted, ""));
            }
            thread::sleep(POLL.min(length));
        }
        Ok(())
    }

    fn failure(&self, failure: Failure, what: &str) -> Error {
        let page = format!("{}/{}", self.hub.endpoint, self.repository);
        let token = self.hub.token.is_some();
        match failure {
            Failure::Disk(e) => self.unwritable(e),
            Failure::Interrupted => self.failed("interrupted", "try again: it goes on from there"),
            Failure::Unreachable(why) | Failure::Wrong(why) => self.failed(format!("{what}: {why}"), NETWORK),
            Failure::Refused(401 | 403, code) if code == "GatedRepo" => {
                let account = if token { "with the account of HF_TOKEN" } else { "and set HF_TOKEN" };
                self.failed("the repository is gated", &format!("accept its terms at {page} {account}"))
            }
            Failure::Refused(401 | 403, _) if token => {
                self.failed("the server refuses the token, or the repository is private", "check HF_TOKEN")
            }
            Failure::Refused(401 | 403, _) => {
                self.failed("there is no such repository, or it is private", "check the name or set HF_TOKEN")
            }
            Failure::Refused(404, _) => self.failed(format!("{what}: not found at {page}"), "check the name"),
            Failure::Refused(429, _) => self.failed("too many requests", "wait a while, or set HF_TOKEN"),
            Failure::Refused(status, code) => self.failed(format!("{what}: status {status} {code}"), NETWORK),
        }
    }

    fn unwritable(&self, e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.failed("the disk is full", SPACE),
            _ => self.failed(e, "set HF_HOME to a folder that can be written"),
        }
    }

    fn failed(&self, why: impl ToString, remedy: &str) -> Error {
        let (what, folder) = (self.repository.into(), self.hub.cache.clone());
        Error::Fetch { what, folder, why: why.to_string(), remedy: remedy.into() }
    }
}

/// A file of which the beginning is there.
struct Partial {
    file: File,
    bytes: u64,
    /// Of those.
    hash: Sha256,
}

impl Partial {
    /// What is longer than `most` bytes is of no use. `go_on` gets the bytes read so far.
    fn open(path: &Path, most: u64, mut go_on: impl FnMut(u64) -> ControlFlow<()>) -> Result<Partial, Failure> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut partial = Partial { file, bytes: 0, hash: Sha256::new() };
        if partial.file.metadata()?.len() > most {
            partial.file.set_len(0)?;
        }
        let mut chunk = vec![0; 1 << 20];
        loop {
            let n = partial.file.read(&mut chunk)?;
            if n == 0 {
                return Ok(partial);
            }
            partial.hash.update(&chunk[..n]);
            partial.bytes += n as u64;
            if go_on(partial.bytes).is_break() {
                return Err(Failure::Interrupted);
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.bytes, self.hash) = (0, Sha256::new());
        Ok(())
    }
}

/// Names of the weights of a safetensors checkpoint whose index, if it has one, is in `folder`.
fn safetensors(names: &BTreeSet<&str>, folder: &Path) -> Result<Vec<String>, String> {
    if !names.contains(INDEX) {
        let weights = names.iter().filter(|name| name.ends_with(".safetensors") && !name.contains('/'));
        return match names.contains("model.safetensors") {
            true => Ok(vec!["model.safetensors".into()]),
            false => Some(weights.map(|name| name.to_string()).collect::<Vec<_>>())
                .filter(|weights| !weights.is_empty())
                .ok_or_else(|| "there are neither GGUF nor safetensors files".into()),
        };
    }
    let wrong = |what: String| format!("{INDEX}: {what}");
    let mut json = String::new();
    let file = File::open(folder.join(INDEX)).map_err(|e| wrong(e.to_string()))?;
    file.take(MAX_JSON).read_to_string(&mut json).map_err(|e| wrong(e.to_string()))?;
    let json: Json = serde_json::from_str(&json).map_err(|e| wrong(e.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| wrong("no weight_map".into()))?;
    let files: BTreeSet<&str> = map.values().filter_map(Json::as_str).collect();
    match files.iter().find(|file| !names.contains(*file)) {
        Some(file) => Err(wrong(format!("{file:?} is missing"))),
        None => Ok(files.into_iter().map(String::from).collect()),
    }
}

/// Adds the paths of all files under `folder`, with `/` between names.
fn find_files(folder: &Path, prefix: &str, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // The names are links, of which some may lead nowhere.
        match fs::metadata(entry.path()) {
            Ok(m) if m.is_dir() && prefix.len() < 256 => find_files(&entry.path(), &format!("{name}/"), names)?,
            Ok(m) if m.is_file() => drop(names.insert(name)),
            _ => {}
        }
    }
    Ok(())
}

/// Gives the blob its name in a snapshot.
fn link(blob: &Path, path: &Path, file: &Entry) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // Up from the file's folder to the repository's.
    let up = "../".repeat(file.name.matches('/').count() + 2);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(format!("{up}blobs/{}", file.hash), path);
    #[cfg(windows)]
    let linked = std::os::windows::fs::symlink_file(format!("{up}blobs/{}", file.hash).replace('/', "\\"), path);
    #[cfg(not(any(unix, windows)))]
    let linked = Err::<(), _>(io::Error::from(io::ErrorKind::Unsupported));
    // Windows lets only some users make symbolic links.
    linked.or_else(|_| fs::hard_link(blob, path)).or_else(|_| fs::copy(blob, path).map(drop))
}

fn is_hash(text: &str) -> bool {
    (40..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a name stays within its folder, on every system.
fn is_plain(name: &str) -> bool {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    inside && !name.is_empty() && name.len() <= 512 && !name.contains(['\\', ':', '\0'])
}

/// Whether the name of a GGUF file has `quantisation` as a word: `model-Q4_K_M.gguf`, `model.q4_k_m.gguf`.
fn is_of(name: &str, quantisation: &str) -> bool {
    let (name, quantisation) = (name.to_ascii_lowercase(), quantisation.to_ascii_lowercase());
    name.match_indices(&quantisation).any(|(at, word)| {
        let bounds = |c: char| "-./_".contains(c);
        name[..at].chars().next_back().is_none_or(bounds) && name[at + word.len()..].starts_with(['-', '.', '/'])
    })
}

/// What a GGUF file calls its quantisation: the last word of its name.
fn quantisation_of(name: &str) -> &str {
    let stem = &name[..name.len() - ".gguf".len()];
    let stem = if is_shard(name) { &stem[..stem.len() - SHARD.len()] } else { stem };
    stem.rsplit(['-', '.', '/']).next().unwrap_or(stem)
}

const SHARD: &str = "-00001-of-00001";

/// Whether the name ends as that of a part of several, `-00001-of-00003.gguf`.
fn is_shard(name: &str) -> bool {
    let stem = &name.as_bytes()[..name.len().saturating_sub(".gguf".len())];
    let end = &stem[stem.len().saturating_sub(SHARD.len())..];
    let alike = |(&byte, pattern): (&u8, u8)| byte == pattern || pattern.is_ascii_digit() && byte.is_ascii_digit();
    end.len() == SHARD.len() && end.iter().zip(SHARD.bytes()).all(alike)
}

fn percent_encoded(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => (byte as char).into(),
        _ => format!("%{byte:02X}"),
    }
}
