//! Small files that farpast keeps between runs. One that is absent, damaged or too large costs time and nothing else, and so
//! does one that cannot be written.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a file of at most `limit` bytes holds.
pub(crate) fn read(file: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file).and_then(|f| f.take(limit + 1).read_to_end(&mut bytes)).ok()?;
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// Makes `bytes` the contents of a file, in one step for whoever reads it.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(file, |mut file| file.write_all(bytes))
}

/// As [`replace`], with what `write` writes.
pub(crate) fn replace_by(file: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    static WRITES: AtomicUsize = AtomicUsize::new(0);
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Of this write alone, whatever other threads and processes do.
    let name = format!("writing-{}-{}", process::id(), WRITES.fetch_add(1, Ordering::Relaxed));
    let partial = folder.join(name);
    let replaced = File::create(&partial).and_then(write).and_then(|()| fs::rename(&partial, file));
    if replaced.is_err() {
        // It may not even have been created.
        let _ = fs::remove_file(&partial);
    }
    replaced
}
