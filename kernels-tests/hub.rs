//! Fetching from a hub: a small server on this machine in its place.
#![cfg(feature = "hub")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farpast::fetch::Progress;
use farpast::fetch::hub::Hub;
use farpast::{Error, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::toy_chat::temporary;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn quantisations_are_found_in_any_case_and_default_to_q4_k_m() {
    let files = ["m-f16.gguf", "m-IQ4_K_M.gguf", "m-Q4_K_M.gguf", "m.Q8_0.gguf", "mmproj-m-f16.gguf", "README.md"];
    let place = Place::new("quantisations", &files.map(|name| (name, name.as_bytes())));
    for (model, expected) in [
        ("org/toy", "m-Q4_K_M.gguf"),
        ("org/toy:q8_0", "m.Q8_0.gguf"),
        ("org/toy:F16", "m-f16.gguf"),
        ("org/toy:iq4_k_m", "m-IQ4_K_M.gguf"),
    ] {
        let path = place.pull(model).unwrap();
        assert_eq!(path, place.snapshot().join(expected));
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
    }
    says(place.pull("org/toy:Q4_K"), &["there is no Q4_K in org/toy, which has IQ4_K_M, Q4_K_M, Q8_0, f16; choose"]);
    let place = Place::new("first", &[("z-Q2_K.gguf", b"z"), ("b/m-Q8_0.gguf", b"b")]);
    assert_eq!(place.pull("org/toy").unwrap(), place.snapshot().join("b/m-Q8_0.gguf"));
}

#[test]
fn the_cache_is_laid_out_as_the_hubs_own_tools_do() {
    let place = Place::new("layout", &[("sub/m-Q4_K_M.gguf", b"weights")]);
    let path = place.pull("org/toy").unwrap();
    let folder = place.hub.cache.join("models--org--toy");
    assert_eq!(path, folder.join("snapshots").join(COMMIT).join("sub/m-Q4_K_M.gguf"));
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(folder.join("blobs").join(hash(b"weights"))).unwrap(), b"weights");
    #[cfg(unix)]
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../../blobs").join(hash(b"weights")));
    let requests = place.requests();
    place.pull("org/toy").unwrap();
    assert_eq!(place.requests().len(), requests.len() + 1, "only the list of files is asked for again");
}

#[test]
fn a_repository_without_gguf_gives_the_safetensors_folder() {
    let index =
        json!({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}});
    let index = index.to_string();
    let files: [(&str, &[u8]); 9] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("chat_template.jinja", b"x"),
        ("additional_chat_templates/tool_use.jinja", b"x"),
        ("model.safetensors.index.json", index.as_bytes()),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
        ("consolidated.safetensors", b"the same again"),
        ("pytorch_model.bin", b"the same again"),
    ];
    let place = Place::new("folder", &files);
    let folder = place.pull("org/toy").unwrap();
    assert_eq!(folder, place.snapshot());
    for (name, bytes) in &files[..7] {
        assert_eq!(fs::read(folder.join(name)).unwrap(), *bytes, "{name}");
    }
    assert!(!folder.join("consolidated.safetensors").exists() && !folder.join("pytorch_model.bin").exists());
    says(place.pull("org/toy:Q8_0"), &["org/toy has no GGUF files"]);
    assert_eq!(Hub { offline: true, ..place.hub.clone() }.pull("org/toy", go_on).unwrap(), folder);

    let one =
        Place::new("one-file", &[("config.json", b"{}"), ("model.safetensors", b"w"), ("other.safetensors", b"x")]);
    assert!(one.pull("org/toy").unwrap().join("model.safetensors").is_file());
    assert!(!one.snapshot().join("other.safetensors").exists());
    let none = Place::new("no-weights", &[("config.json", b"{}")]);
    says(none.pull("org/toy"), &["neither GGUF nor safetensors"]);
    let lacks = Place::new("lacks", &[("config.json", b"{}"), ("model.safetensors.index.json", index.as_bytes())]);
    says(lacks.pull("org/toy"), &["model.safetensors.index.json", "\"model-00001-of-00002.safetensors\" is missing"]);
}

#[test]
fn gguf_files_in_parts_are_refused_before_they_are_fetched() {
    let place = Place::new(
        "parts",
        &[("Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", b"1"), ("Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", b"2")],
    );
    says(place.pull("org/toy"), &["m-Q4_K_M-00001-of-00002.gguf is one of several parts"]);
    says(place.pull("org/toy:Q8_0"), &["which has Q4_K_M"]);
    assert!(!place.hub.cache.join("models--org--toy/blobs").exists());
}

#[test]
fn broken_downloads_go_on_where_they_stopped() {
    let bytes = contents(3_000_000);
    let place = Place::new("resumes", &[("m-Q4_K_M.gguf", &bytes)]);
    // Three answers that break off, and a redirect before each.
    place.server.rules(|rules| {
        rules.cut = vec![Some(1_000_000), Some(0), Some(500_000)];
        rules.redirect = true;
    });
    let mut seen = vec![];
    let path = place.hub.pull("org/toy", |progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    });
    assert_eq!(fs::read(path.unwrap()).unwrap(), bytes);
    let ranges: Vec<_> = place.requests().into_iter().filter_map(|request| request.range).collect();
    assert_eq!(ranges.last().unwrap(), "bytes=1500000-");
    assert_eq!(seen.last(), Some(&Progress::Downloading(3_000_000, 3_000_000)));
    let so_far: Vec<u64> =
        seen.iter().map(|progress| if let Progress::Downloading(n, _) = progress { *n } else { 0 }).collect();
    assert!(so_far.is_sorted(), "{so_far:?}");
}

#[test]
fn breaking_off_is_quick_and_the_next_pull_goes_on() {
    let bytes = contents(3_000_000);
    let place = Place::new("interrupted", &[("m-Q4_K_M.gguf", &bytes)]);
    place.server.rules(|rules| rules.cut = vec![Some(2_000_000)]);
    place.server.rules(|rules| rules.stall = true);
    let began = Instant::now();
    let error = place.hub.pull("org/toy", |progress| match progress {
        Progress::Downloading(2_000_000.., _) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    says(error, &["interrupted; try again"]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let blob = place.hub.cache.join("models--org--toy/blobs").join(hash(&bytes) + ".incomplete");
    let kept = fs::metadata(&blob).unwrap().len();
    assert!(kept > 1_000_000 && kept <= 2_000_000, "{kept}");
    place.server.rules(|rules| *rules = Rules::default());
    place.pull("org/toy").unwrap();
    assert_eq!(place.requests().last().unwrap().range, Some(format!("bytes={kept}-")));
    assert!(!blob.exists());
}

#[test]
fn what_an_earlier_pull_left_is_used_only_if_it_fits() {
    let bytes = contents(100_000);
    for (name, left) in [("longer", contents(100_001)), ("other", vec![7; 50_000]), ("whole", bytes.clone())] {
        let place = Place::new(&format!("left-{name}"), &[("m-Q4_K_M.gguf", &bytes)]);
        let blobs = place.hub.cache.join("models--org--toy/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(hash(&bytes) + ".incomplete"), &left).unwrap();
        let result = place.pull("org/toy");
        if name == "other" {
            says(result, &["m-Q4_K_M.gguf: expected SHA-256", "found"]);
        }
        assert_eq!(fs::read(place.pull("org/toy").unwrap()).unwrap(), bytes, "{name}");
    }
    // A server without ranges, and one that sends from elsewhere.
    let place = Place::new("no-ranges", &[("m-Q4_K_M.gguf", &bytes)]);
    place.server.rules(|rules| (rules.cut, rules.ranges) = (vec![Some(60_000)], false));
    assert_eq!(fs::read(place.pull("org/toy").unwrap()).unwrap(), bytes);
}

#[test]
fn wrong_bytes_are_refused_and_not_kept() {
    let bytes = contents(100_000);
    let mut other = bytes.clone();
    other[50_000] ^= 1;
    let longer = contents(100_001);
    for (sent, says_) in [(other, "expected SHA-256"), (longer, "expected 100000 bytes, found more")] {
        let place = Place::new("wrong", &[("m-Q4_K_M.gguf", &bytes)]);
        place.server.rules(|rules| rules.instead = Some(sent));
        says(place.pull("org/toy"), &["m-Q4_K_M.gguf: ", says_]);
        assert!(!place.hub.cache.join("models--org--toy/refs/main").exists());
        place.server.rules(|rules| rules.instead = None);
        assert_eq!(fs::read(place.pull("org/toy").unwrap()).unwrap(), bytes);
    }
    // One that ends early every time.
    let place = Place::new("short", &[("m-Q4_K_M.gguf", &bytes)]);
    place.server.rules(|rules| rules.instead = Some(bytes[..99_999].to_vec()));
    let began = Instant::now();
    says(place.pull("org/toy"), &["m-Q4_K_M.gguf: ", "check the network"]);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn refusals_say_what_to_do() {
    let place = Place::new("refusals", &[("m-Q4_K_M.gguf", b"w")]);
    let with_token = Hub { token: Some("hf_secret".into()), ..place.hub.clone() };
    for (status, code, without, with) in [
        (401, "GatedRepo", "gated; accept its terms at http", "with the account of HF_TOKEN"),
        (403, "GatedRepo", "and set HF_TOKEN", "with the account of HF_TOKEN"),
        (401, "RepoNotFound", "no such repository, or it is private; check the name or set HF_TOKEN", "check HF_TOKEN"),
        (404, "EntryNotFound", "not found at http", "check the name"),
        (429, "", "too many requests", "wait a while"),
        (418, "Teapot", "status 418 Teapot", "check the network"),
    ] {
        place.server.rules(|rules| rules.refuse = Some((status, code)));
        says(place.pull("org/toy"), &[without]);
        let error = says(with_token.pull("org/toy", go_on), &[with]);
        assert!(!error.contains("hf_secret"), "{error}");
    }
    place.server.rules(|rules| rules.refuse_list = Some((401, "RepoNotFound")));
    says(place.pull("org/toy"), &["org/toy cannot be fetched into ", "no such repository"]);
    let sent = place.requests().into_iter().filter(|request| request.token.as_deref() == Some("Bearer hf_secret"));
    assert!(sent.count() >= 6);
}

#[test]
fn the_token_does_not_follow_a_redirect() {
    let place = Place::new("token", &[("m-Q4_K_M.gguf", b"w")]);
    place.server.rules(|rules| rules.redirect = true);
    Hub { token: Some("hf_secret".into()), ..place.hub.clone() }.pull("org/toy", go_on).unwrap();
    let (cdn, hub): (Vec<_>, Vec<_>) =
        place.requests().into_iter().partition(|request| request.path.starts_with("/cdn"));
    assert!(!cdn.is_empty() && cdn.iter().all(|request| request.token.is_none()));
    assert!(hub.iter().all(|request| request.token.is_some()));
}

#[test]
fn names_and_hashes_of_a_server_cannot_leave_the_cache() {
    let evil = |file: Value| {
        let place = Place::new("evil", &[]);
        place.server.rules(|rules| rules.list = Some(json!({"sha": COMMIT, "siblings": [file]}).to_string()));
        says(place.pull("org/toy"), &["sent no list of files"]);
        let entries = fs::read_dir(&place.hub.cache).into_iter().flatten().count();
        assert_eq!(entries, 0, "nothing is written");
    };
    for name in ["../m.gguf", "/m.gguf", "a/../../m.gguf", "a\\..\\m.gguf", "C:m.gguf", "", ".", "./m.gguf", "m\0.gguf"]
    {
        evil(json!({"rfilename": name, "size": 1, "blobId": COMMIT}));
    }
    evil(json!({"rfilename": "m.gguf", "size": 1, "blobId": "../../../../etc/passwd/../../etc/passwd/../x"}));
    evil(json!({"rfilename": "m.gguf", "size": 1, "lfs": {"sha256": "/etc/passwd"}}));
    evil(json!({"rfilename": "m.gguf", "size": -1, "blobId": COMMIT}));
    evil(json!({"rfilename": 1}));
    for list in ["", "[]", "{}", "{\"sha\": \"..\", \"siblings\": []}", "<html>", &"[".repeat(100_000)] {
        let place = Place::new("no-list", &[]);
        place.server.rules(|rules| rules.list = Some(list.into()));
        says(place.pull("org/toy"), &["sent no list of files"]);
    }
}

#[test]
fn models_are_named_by_owner_and_repository() {
    let place = Place::new("names", &[]);
    for name in
        ["", "toy", "org/", "/toy", "org/toy/x", "../toy", "org/..", "org/toy:", "org /toy", "org/to?y", "http://x"]
    {
        let error = place.pull(name).unwrap_err();
        assert!(matches!(error, Error::Request { .. }) && error.to_string().contains("ORG/REPO"), "{name}: {error}");
    }
    assert!(place.requests().is_empty());
}

#[test]
fn offline_takes_the_cache_and_names_what_is_missing() {
    let place = Place::new("offline", &[("m-Q8_0.gguf", b"w"), ("m-Q4_K_M.gguf", b"v")]);
    let offline = Hub { offline: true, ..place.hub.clone() };
    says(offline.pull("org/toy", go_on), &["org/toy is not in the cache; unset HF_HUB_OFFLINE"]);
    let path = place.pull("org/toy:Q8_0").unwrap();
    let requests = place.requests().len();
    assert_eq!(offline.pull("org/toy", go_on).unwrap(), path, "the only one there");
    says(offline.pull("org/toy:Q4_K_M", go_on), &["there is no Q4_K_M in org/toy, which has Q8_0"]);
    assert_eq!(place.requests().len(), requests, "nobody is asked");
    // What the hub's own tools fetched in part.
    let index = json!({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).to_string();
    let folder = place.snapshot();
    fs::remove_file(path).unwrap();
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    says(offline.pull("org/toy", go_on), &["\"model-00001-of-00001.safetensors\" is missing"]);
    fs::write(folder.join("model-00001-of-00001.safetensors"), "w").unwrap();
    says(offline.pull("org/toy", go_on), &["not in the cache: config.json, tokenizer.json"]);
}

#[test]
fn without_a_network_the_cache_will_do_or_the_error_is_quick() {
    let place = Place::new("unreachable", &[("m-Q4_K_M.gguf", b"w")]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub { endpoint: format!("http://{closed}"), ..place.hub.clone() };
    says(hub.pull("org/toy", go_on), &["refused", "check the network"]);
    let path = place.pull("org/toy").unwrap();
    assert_eq!(hub.pull("org/toy", go_on).unwrap(), path);
    says(hub.pull("org/toy:Q8_0", go_on), &["check the network"]);

    // One that takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let hub = Hub { endpoint, timeout: Duration::from_secs(1), cache: place.folder.join("empty"), ..place.hub.clone() };
    let began = Instant::now();
    says(hub.pull("org/toy", go_on), &["timeout", "check the network"]);
    assert!(began.elapsed() < Duration::from_secs(5));
    let began = Instant::now();
    says(Hub { timeout: Duration::from_secs(60), ..hub }.pull("org/toy", |_| ControlFlow::Break(())), &["interrupted"]);
    assert!(began.elapsed() < Duration::from_secs(5), "breaking off does not wait for the server");
}

#[test]
fn servers_in_trouble_are_asked_again() {
    let place = Place::new("trouble", &[("m-Q4_K_M.gguf", b"w")]);
    place.server.rules(|rules| rules.fail = 2);
    place.pull("org/toy").unwrap();
    let place = Place::new("more-trouble", &[("m-Q4_K_M.gguf", b"w")]);
    place.server.rules(|rules| rules.fail = 3);
    says(place.pull("org/toy"), &["m-Q4_K_M.gguf: the server answered 503"]);
}

#[test]
fn many_at_once_fetch_once_and_find_it_at_once() {
    let bytes = contents(500_000);
    let place = Place::new("two", &[("m-Q4_K_M.gguf", &bytes)]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(fs::read(place.pull("org/toy").unwrap()).unwrap(), bytes));
        }
    });
    // From its start: a busy machine may break off a transfer, which goes on from there.
    let begins = |request: &Request| request.path.contains("/resolve/") && request.range.is_none();
    assert_eq!(place.requests().into_iter().filter(begins).count(), 1);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let place = Place::new("unwritable", &[("m-Q4_K_M.gguf", b"w")]);
    let file = place.folder.join("file");
    fs::write(&file, "").unwrap();
    let hub = Hub { cache: file.join("hub"), ..place.hub.clone() };
    says(hub.pull("org/toy", go_on), &[file.to_str().unwrap(), "set HF_HOME"]);
}

#[test]
fn variables_are_those_of_the_hubs_own_tools() {
    let place = Place::new("variables", &[]);
    let hub = |variables: &[(&str, &str)]| {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Hub::from_variables(|name| variables.get(name).map(|value| value.to_string())).unwrap()
    };
    let home = place.folder.to_str().unwrap();
    let plain = hub(&[("HF_HOME", home)]);
    assert_eq!(plain.endpoint, "https://huggingface.co");
    assert_eq!((plain.cache, plain.token, plain.offline), (place.folder.join("hub"), None, false));
    fs::write(place.folder.join("token"), " hf_file\n").unwrap();
    assert_eq!(hub(&[("HF_HOME", home)]).token.as_deref(), Some("hf_file"));
    let set = hub(&[
        ("HF_HOME", home),
        ("HF_TOKEN", "hf_set"),
        ("HF_HUB_CACHE", "/c"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_HUB_OFFLINE", "1"),
    ]);
    assert_eq!((set.endpoint.as_str(), set.token.as_deref(), set.offline), ("http://mirror", Some("hf_set"), true));
    assert_eq!(set.cache, Path::new("/c"));
    assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
    let bad = Hub::from_variables(|name| (name == "HF_TOKEN").then(|| "a\r\nb: c".into()));
    assert!(bad.unwrap_err().to_string().contains("HF_TOKEN"));
}

/// A folder of one test, a server, and the hub of both.
struct Place {
    folder: PathBuf,
    server: Server,
    hub: Hub,
}

impl Place {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Place {
        let folder = temporary(&format!("hub-{name}"));
        fs::create_dir_all(folder.join("hub")).unwrap();
        let server = Server::new(files);
        let hub = Hub {
            endpoint: format!("http://{}", server.address),
            cache: folder.join("hub"),
            token: None,
            offline: false,
            timeout: Duration::from_secs(3),
        };
        Place { folder, server, hub }
    }

    fn pull(&self, model: &str) -> Result<PathBuf> {
        self.hub.pull(model, go_on)
    }

    fn snapshot(&self) -> PathBuf {
        self.hub.cache.join("models--org--toy/snapshots").join(COMMIT)
    }

    fn requests(&self) -> Vec<Request> {
        self.server.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Answers as the hub does, one request a connection, for the repository `org/toy`.
struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    files: Vec<(String, Vec<u8>)>,
    rules: Mutex<Rules>,
    requests: Mutex<Vec<Request>>,
    over: AtomicBool,
}

#[derive(Clone)]
struct Request {
    path: String,
    range: Option<String>,
    token: Option<String>,
}

/// How the server misbehaves.
struct Rules {
    /// What is sent in the place of the list of files.
    list: Option<String>,
    refuse_list: Option<(u16, &'static str)>,
    /// Status and `X-Error-Code` for files.
    refuse: Option<(u16, &'static str)>,
    /// Requests for files that are answered 503 first.
    fail: usize,
    /// Files are sent by another address, as the hub has it with large ones.
    redirect: bool,
    /// Bytes after which one answer after the other breaks off.
    cut: Vec<Option<usize>>,
    /// Those that break off do so by standing still.
    stall: bool,
    ranges: bool,
    /// What is sent in the place of any file.
    instead: Option<Vec<u8>>,
}

impl Default for Rules {
    fn default() -> Rules {
        let (list, refuse_list, refuse, instead) = (None, None, None, None);
        Rules { list, refuse_list, refuse, fail: 0, redirect: false, cut: vec![], stall: false, ranges: true, instead }
    }
}

impl Server {
    fn new(files: &[(&str, &[u8])]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        let shared = Arc::new(Shared { files, ..Shared::default() });
        let server = Server { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(|stream| stream.ok()) {
                if shared.over.load(SeqCst) {
                    return;
                }
                let shared = shared.clone();
                // One that the client has left already is of no interest.
                std::thread::spawn(move || drop(shared.answer(stream, address)));
            }
        });
        server
    }

    fn rules(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.rules.lock().unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn answer(&self, mut stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let headers: HashMap<String, String> = lines
            .map_while(|line| line.ok().filter(|line| !line.is_empty()))
            .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.into())))
            .collect();
        let range = headers.get("range").cloned();
        let request =
            Request { path: path.clone(), range: range.clone(), token: headers.get("authorization").cloned() };
        self.requests.lock().unwrap().push(request);
        let mut rules = self.rules.lock().unwrap();
        let refuse = |mut stream: TcpStream, (status, code): (u16, &str)| {
            write!(
                stream,
                "HTTP/1.1 {status} No\r\nX-Error-Code: {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        };
        if path.starts_with("/api/models/org/toy/") {
            if let Some(refusal) = rules.refuse_list {
                return refuse(stream, refusal);
            }
            let list = rules.list.clone().unwrap_or_else(|| self.list());
            return send(&mut stream, "200 OK", "", list.as_bytes(), list.len());
        }
        if let Some(refusal) = rules.refuse {
            return refuse(stream, refusal);
        }
        if rules.fail > 0 {
            rules.fail -= 1;
            return refuse(stream, (503, ""));
        }
        let prefix = format!("/org/toy/resolve/{COMMIT}/");
        let (name, moved) = match (path.strip_prefix(&prefix), path.strip_prefix("/cdn/")) {
            (Some(name), _) => (name, false),
            (_, Some(name)) => (name, true),
            _ => return refuse(stream, (404, "EntryNotFound")),
        };
        if rules.redirect && !moved {
            let to = format!("Location: http://localhost:{}/cdn/{name}\r\n", address.port());
            return send(&mut stream, "302 Found", &to, b"", 0);
        }
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else {
            return refuse(stream, (404, "EntryNotFound"));
        };
        let bytes = rules.instead.clone().unwrap_or_else(|| bytes.clone());
        let cut = if rules.cut.is_empty() { None } else { rules.cut.remove(0) };
        let (ranges, stall) = (rules.ranges, rules.stall && cut.is_some());
        drop(rules);
        let start =
            range.filter(|_| ranges).and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let (status, head) = match start {
            Some(start) if start >= bytes.len() => return refuse(stream, (416, "")),
            Some(start) => {
                ("206 Partial Content", format!("Content-Range: bytes {start}-{}/{}\r\n", bytes.len() - 1, bytes.len()))
            }
            None => ("200 OK", String::new()),
        };
        let rest = &bytes[start.unwrap_or(0)..];
        send(&mut stream, status, &head, &rest[..cut.unwrap_or(rest.len()).min(rest.len())], rest.len())?;
        while stall && !self.over.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn list(&self) -> String {
        let entry = |(name, bytes): &(String, Vec<u8>)| match name.contains(".json") {
            true => json!({"rfilename": name, "size": bytes.len(), "blobId": &hash(bytes)[..40]}),
            false => json!({"rfilename": name, "size": bytes.len(), "blobId": COMMIT, "lfs": {"sha256": hash(bytes)}}),
        };
        json!({"sha": COMMIT, "siblings": self.files.iter().map(entry).collect::<Vec<_>>()}).to_string()
    }
}

/// An answer that announces `length` bytes.
fn send(stream: &mut TcpStream, status: &str, head: &str, bytes: &[u8], length: usize) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(bytes)
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * i) >> 8) as u8).collect()
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
