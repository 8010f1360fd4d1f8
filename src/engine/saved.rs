//! A session in a file, so that a long prompt is computed once.
//!
//! Layout, little-endian: a header; the ids of all tokens; of each tensor of keys or values, in order of declaration, the session's full
//! pages, as the device has them; the SHA-256 of all that. Positions behind the last full page are not there.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{Device, Engine, check_ids};
use crate::attention::Attention;
use crate::cache;
use crate::error::{Error, Result};
use crate::kv::PAGE;
use crate::memory::Tensor;
use crate::session::Session;

const MAGIC: [u8; 8] = *b"farpast\0";

/// Of the layout, and of what keys and values mean: they may be in another order of dims one day.
const VERSION: u32 = 1;

/// Bytes of a SHA-256.
const DIGEST: usize = 32;

/// Bytes read or written at once, about.
const CHUNK: usize = 4 << 20;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Header {
    magic: [u8; 8],
    version: u32,
    tokens: u32,
    pages: u32,
    /// Name of the format of keys and values, filled with zeros.
    kv: [u8; 8],
    model: [u8; DIGEST],
}

impl Engine {
    /// Writes the tokens of `session`, and the keys and values of its full pages, to a file, in one step for whoever reads it. How tokens
    /// are drawn is not kept.
    ///
    /// Only sessions with [`Attention::Dense`] can be saved: others have pages that are not in order of position.
    pub fn save(&self, session: &Session, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match session.attention() {
            Attention::Dense => {}
            other => return Err(Error::request("attention of a session to be saved", "dense", other)),
        }
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(Error::file(path, "file type", "a regular file or none", "a directory or device"));
        }
        let pages = &session.table.pages()[..session.computed() / PAGE];
        let mut header = self.header();
        let count = |n: usize| u32::try_from(n).map_err(|_| Error::request("tokens to be saved", "fewer", n));
        (header.tokens, header.pages) = (count(session.tokens().len())?, count(pages.len())?);
        // Errors of the device come through the writing as they are.
        let mut failed = None;
        let written = cache::replace_by(path, |file| {
            let mut out = Hashed { inner: BufWriter::new(file), hash: Sha256::new() };
            out.write_all(bytemuck::bytes_of(&header))?;
            out.write_all(bytemuck::cast_slice(session.tokens()))?;
            for t in self.page_tensors() {
                for run in runs(pages, CHUNK / self.page_bytes(t)) {
                    match self.read_pages(t, run) {
                        Ok(bytes) => out.write_all(&bytes)?,
                        Err(e) => {
                            failed = Some(e);
                            return Err(io::Error::other("the device"));
                        }
                    }
                }
            }
            let Hashed { mut inner, hash } = out;
            inner.write_all(&hash.finalize())?;
            inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
        });
        match failed {
            Some(e) => Err(e),
            None => written.map_err(Error::io(path)),
        }
    }

    /// The session that [`save`](Self::save) has written, of which at most 15 tokens that were computed are pending again. What follows has
    /// the same bits as there, where the device and the engine's options are the same.
    ///
    /// A file of another model, KV format or version, and a damaged one, is an [`Error::File`].
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<Session> {
        let path = path.as_ref();
        // A pipe would block in `open`, so ask first.
        let (length, is_file) = path.metadata().map(|m| (m.len(), m.is_file())).map_err(Error::io(path))?;
        if !is_file {
            return Err(Error::file(path, "file type", "a regular file", "a directory or device"));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let mut input = Hashed { inner: BufReader::new(file), hash: Sha256::new() };
        let mut header: Header = bytemuck::Zeroable::zeroed();
        let read = |input: &mut Hashed<_>, bytes: &mut [u8]| input.read_exact(bytes).map_err(Error::io(path));
        if length < size_of::<Header>() as u64 {
            return Err(Error::file(path, "length", "a saved session", format!("{length} bytes")));
        }
        read(&mut input, bytemuck::bytes_of_mut(&mut header))?;
        self.check(&header, path)?;
        let (n_tokens, n_pages) = (header.tokens as usize, header.pages as usize);
        let of_page: usize = self.page_tensors().map(|t| self.page_bytes(t)).sum();
        let expected = (size_of::<Header>() + 4 * n_tokens + DIGEST) as u128 + n_pages as u128 * of_page as u128;
        if expected != u128::from(length) || n_tokens < n_pages * PAGE {
            let expected = format!("{expected} bytes of {n_tokens} tokens and {n_pages} pages");
            return Err(Error::file(path, "length", expected, length));
        }
        let context = self.memory.capacity.context;
        if n_pages * PAGE > context {
            return Err(Error::ContextFull { tokens: n_pages * PAGE, context });
        }
        let mut tokens = vec![0u32; n_tokens];
        read(&mut input, bytemuck::cast_slice_mut(&mut tokens))?;
        self.make_room(n_pages)?;
        let mut session = self.session();
        session.table.append(n_pages * PAGE)?;
        let pages = session.table.pages().to_vec();
        // Nobody reads the pages before the hash is known to be right.
        let mut bytes = Vec::new();
        let tensors: Vec<_> = self.page_tensors().collect();
        for t in tensors {
            for run in runs(&pages, CHUNK / self.page_bytes(t)) {
                bytes.resize(run.len() * self.page_bytes(t), 0);
                read(&mut input, &mut bytes)?;
                self.write_pages(t, run, &bytes)?;
            }
        }
        let Hashed { mut inner, hash } = input;
        let mut digest = [0; DIGEST];
        inner.read_exact(&mut digest).map_err(Error::io(path))?;
        if hash.finalize()[..] != digest {
            return Err(Error::file(path, "contents", "those of its SHA-256", "others: the file is damaged"));
        }
        check_ids(&tokens, self.config.vocab)?;
        session.push(&tokens);
        Ok(session)
    }

    fn header(&self) -> Header {
        let mut kv = [0; 8];
        let name = self.memory.capacity.kv.kv_name().unwrap_or_default();
        kv[..name.len()].copy_from_slice(name.as_bytes());
        Header { magic: MAGIC, version: VERSION, tokens: 0, pages: 0, kv, model: self.identity }
    }

    fn check(&self, found: &Header, path: &Path) -> Result<()> {
        let own = self.header();
        let error = |what, expected: &dyn ToString, found: &dyn ToString| {
            Err(Error::file(path, what, expected.to_string(), found.to_string()))
        };
        let name = |kv: &[u8]| String::from_utf8_lossy(kv).trim_end_matches('\0').escape_debug().to_string();
        match found {
            _ if found.magic != MAGIC => error("magic", &"a saved session", &"another file"),
            _ if found.version != VERSION => error("version", &VERSION, &found.version),
            _ if found.model != own.model => error("model", &"the one that is loaded", &"another"),
            _ if found.kv != own.kv => error("KV format", &name(&own.kv), &name(&found.kv)),
            _ => Ok(()),
        }
    }

    /// Keys and values of all layers.
    pub(super) fn page_tensors(&self) -> impl Iterator<Item = Tensor> {
        let is_kv = |t: &Tensor| {
            let name = &self.memory.desc(*t).name;
            name.ends_with(".k_pages") || name.ends_with(".v_pages")
        };
        self.memory.handles().filter(is_kv)
    }

    /// Bytes of one page of a tensor.
    pub(super) fn page_bytes(&self, t: Tensor) -> usize {
        self.memory.desc(t).bytes_of(self.config.attention.kv_heads * PAGE)
    }

    pub(super) fn read_pages(&self, t: Tensor, pages: Range<u32>) -> Result<Vec<u8>> {
        let range = self.bytes_of_pages(t, pages);
        match &self.device {
            Device::Gpu(on) => on.gpu.read_at(&on.buffers, t, range.start, range.len()),
            Device::Cpu { host } => Ok(host[t.0].bytes()[range].to_vec()),
        }
    }

    pub(super) fn write_pages(&mut self, t: Tensor, pages: Range<u32>, bytes: &[u8]) -> Result<()> {
        let range = self.bytes_of_pages(t, pages);
        match &mut self.device {
            Device::Gpu(on) => on.gpu.write_at(&on.buffers, t, range.start, bytes),
            Device::Cpu { host } => {
                host[t.0].bytes_mut()[range].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn bytes_of_pages(&self, t: Tensor, pages: Range<u32>) -> Range<usize> {
        let page = self.page_bytes(t);
        pages.start as usize * page..pages.end as usize * page
    }
}

/// Pages that lie one behind the other, at most `most` at once, or one.
fn runs(pages: &[u32], most: usize) -> impl Iterator<Item = Range<u32>> {
    let neighbours = pages.chunk_by(|a, b| a + 1 == *b);
    neighbours.flat_map(move |run| run.chunks(most.max(1))).map(|run| run[0]..run[0] + run.len() as u32)
}

/// Hashes what passes.
struct Hashed<T> {
    inner: T,
    hash: Sha256,
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
}
