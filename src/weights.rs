//! A checkpoint by tensor name, dims checked, and its metadata by key. Names and keys are those of GGUF files, whatever
//! the checkpoint is.

mod gguf;
mod hugging_face;
mod safetensors;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use self::gguf::Gguf;
pub use self::gguf::{Array, Elements};
use self::hugging_face::HuggingFace;
use crate::format::{self, BF16, F16, F32, Format, Q8_0};
use crate::memory::{Bytes, WeightRows};
use crate::{Error, Result};

/// An open checkpoint. Tensor bytes stay in the mapped files until they are read.
pub struct Weights {
    path: PathBuf,
    source: Box<dyn Source>,
    quantized: Option<&'static Format>,
}

/// What the checkpoint says of one tensor, whether or not its format is supported.
#[derive(Clone, Debug)]
pub struct TensorEntry<'a> {
    /// Name as in GGUF files.
    pub name: &'a str,
    /// Dims, the contiguous one last.
    pub dims: Vec<u64>,
    /// The format's name as the checkpoint or ggml prints it, or its number.
    pub format_name: Cow<'a, str>,
    /// The format when it is supported.
    pub format: Option<&'static Format>,
    /// Where in its file its bytes are; empty when the size of a block is not known.
    pub bytes: Range<usize>,
}

/// Typed access to the metadata of a checkpoint.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    source: &'a dyn Source,
}

/// One metadata value. Its `Display` form tells type and value, arrays without their elements.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Any integer type.
    Integer(i128),
    /// 32 or 64 bits in the file.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Not yet checked to be UTF-8.
    String(&'a [u8]),
    /// Decoded while it is iterated.
    Array(Array<'a>),
}

impl Weights {
    /// Maps and checks a GGUF file; a folder with `config.json` and `model.safetensors`, or shards of it and their
    /// `model.safetensors.index.json`; or one `.safetensors` file with `config.json` beside it.
    ///
    /// All offsets and lengths are checked here; tensor bytes are not touched. The files must not be changed or
    /// truncated by anyone while they are open: the operating system shows such changes in mapped memory.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let path = path.as_ref();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "safetensors") {
            return Weights::from_files(path, map);
        }
        Weights::from_bytes(path, map(path)?)
    }

    /// Checks a GGUF file that is in memory; `path` only names it in errors.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Bytes) -> Result<Weights> {
        let path = path.into();
        let source = Box::new(Gguf::parse(&path, bytes)?);
        Ok(Weights { path, source, quantized: None })
    }

    /// Checks a checkpoint of safetensors, a folder or a file as for [`Weights::open`], whose files `read` gives.
    pub fn from_files(path: impl Into<PathBuf>, read: impl Fn(&Path) -> Result<Bytes>) -> Result<Weights> {
        let path = path.into();
        let source = Box::new(HuggingFace::open(&path, &read)?);
        Ok(Weights { path, source, quantized: None })
    }

    /// The same checkpoint with its matrices of floats to be rounded to `format` while they are loaded, as llama.cpp does:
    /// those of quantised formats and vectors stay as they are; the embedding and the output become Q8_0 where `format` has
    /// less; rows that are not whole blocks become Q8_0, else F16.
    pub fn quantized(self, format: &'static Format) -> Result<Weights> {
        if format.encode.is_none() {
            let names: Vec<_> = format::ALL.iter().filter(|f| f.encode.is_some()).map(|f| f.name).collect();
            return Err(Error::request("format to quantise to", format!("one of {}", names.join(", ")), format.name));
        }
        Ok(Weights { quantized: Some(format), ..self })
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { source: &*self.source }
    }

    /// All tensors, in a GGUF file's order, else by name; in the formats of the checkpoint.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorEntry<'_>> {
        (0..self.source.n_tensors()).map(|i| self.source.entry(i))
    }

    /// Whether the checkpoint has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.source.find(name).is_some()
    }

    /// What tells this checkpoint from others: a hash of the names, dims and formats of its tensors, of the format that it is rounded to,
    /// and of the first bytes of each tensor.
    pub fn fingerprint(&self) -> [u8; 32] {
        const BYTES: usize = 4096;
        let mut hash = Sha256::new();
        hash.update(format!("{:?}\n", self.quantized.map(|format| format.name)));
        for (i, entry) in self.tensors().enumerate() {
            hash.update(format!("{:?}\n", (entry.name, &entry.dims, &entry.format_name)));
            let Some(format) = entry.format else { continue };
            let cols = entry.dims.last().map_or(1, |cols| *cols as usize);
            let rows = entry.dims.iter().map(|n| *n as usize).product::<usize>() / cols.max(1);
            let bytes = self.source.rows(i, format, rows, cols).bytes;
            hash.update(&bytes[..bytes.len().min(BYTES)]);
        }
        hash.finalize().into()
    }

    /// The tensor of this name, which must be `rows × cols` in a supported format. A vector has one row.
    pub fn tensor(&self, name: &str, rows: usize, cols: usize) -> Result<WeightRows> {
        let Some(i) = self.source.find(name) else {
            let found = match self.similar(name) {
                Some(similar) => format!("no such tensor; similar: {}", Shown(similar.as_bytes())),
                None => "no such tensor".into(),
            };
            let expected = format!("{rows} × {cols}");
            return Err(Error::Tensor { path: self.path.clone(), name: name.into(), expected, found });
        };
        let entry = self.source.entry(i);
        let error = |expected: String, found: String| {
            let (path, name) = self.source.place(i);
            Err(Error::Tensor { path: path.into(), name, expected, found })
        };
        let outer = entry.dims.iter().take_while(|&&d| d == 1).count().min(entry.dims.len() - 1);
        let matches = match entry.dims[outer..] {
            [c] => (rows as u64, cols as u64) == (1, c),
            [r, c] => (rows as u64, cols as u64) == (r, c),
            _ => false,
        };
        if !matches {
            let dims: Vec<_> = entry.dims.iter().map(u64::to_string).collect();
            let expected = format!("{rows} × {cols}{}", self.source.shapes_from());
            return error(expected, format!("{} {}", dims.join(" × "), entry.format_name));
        }
        let Some(format) = entry.format else {
            return error(format!("a format of {}", self.source.formats()), entry.format_name.into());
        };
        let stored = self.source.rows(i, format, rows, cols);
        Ok(match self.quantized.and_then(|wanted| quantized_format(wanted, &entry, format)) {
            Some(format) => stored.quantized(format),
            None => stored,
        })
    }

    /// The name that shares the longest start and end with `name`, if that is more than half of it.
    fn similar(&self, name: &str) -> Option<&str> {
        let common = |other: &str| {
            let prefix = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            let suffix = name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
            prefix + suffix
        };
        let best = self.tensors().map(|tensor| tensor.name).max_by_key(|other| common(other))?;
        (common(best) * 2 > name.len()).then_some(best)
    }
}

impl<'a> Metadata<'a> {
    /// All keys, in a GGUF file's order.
    pub fn keys(self) -> impl ExactSizeIterator<Item = &'a str> {
        (0..self.source.n_keys()).map(move |i| self.source.key(i))
    }

    /// Whether there is a value of this key.
    pub fn contains(self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value of `key`, whatever its type.
    pub fn value(self, key: &str) -> Option<Value<'a>> {
        self.source.value(key)
    }

    /// `None` when there is no `key`, else what `get` makes of it: `metadata.optional(key, Metadata::u32)?`.
    pub fn optional<T>(self, key: &str, get: impl FnOnce(Self, &str) -> Result<T>) -> Result<Option<T>> {
        self.contains(key).then(|| get(self, key)).transpose()
    }

    /// A string.
    pub fn string(self, key: &str) -> Result<&'a str> {
        self.one(key, "a UTF-8 string", Value::string)
    }

    /// An integer of any type that fits.
    pub fn u32(self, key: &str) -> Result<u32> {
        self.one(key, "an integer of 32 bits without sign", Value::integer)
    }

    /// An integer of any type that fits.
    pub fn i32(self, key: &str) -> Result<i32> {
        self.one(key, "an integer of 32 bits", Value::integer)
    }

    /// A float of 32 or 64 bits.
    pub fn f32(self, key: &str) -> Result<f32> {
        self.one(key, "a float of 32 bits", Value::float)
    }

    /// A truth value.
    pub fn bool(self, key: &str) -> Result<bool> {
        self.one(key, "a bool", Value::bool)
    }

    /// An array of strings. All are checked before this returns; none is copied.
    pub fn strings(self, key: &str) -> Result<impl ExactSizeIterator<Item = &'a str> + Clone + use<'a>> {
        self.many(key, "an array of UTF-8 strings", Value::string)
    }

    /// An array of integers of any type that fit.
    pub fn u32s(self, key: &str) -> Result<impl ExactSizeIterator<Item = u32> + Clone + use<'a>> {
        self.many(key, "an array of integers of 32 bits without sign", Value::integer)
    }

    /// An array of integers of any type that fit.
    pub fn i32s(self, key: &str) -> Result<impl ExactSizeIterator<Item = i32> + Clone + use<'a>> {
        self.many(key, "an array of integers of 32 bits", Value::integer)
    }

    /// An array of floats of 32 or 64 bits.
    pub fn f32s(self, key: &str) -> Result<impl ExactSizeIterator<Item = f32> + Clone + use<'a>> {
        self.many(key, "an array of floats of 32 bits", Value::float)
    }

    fn one<T>(self, key: &str, expected: &str, convert: fn(Value<'a>) -> Option<T>) -> Result<T> {
        let Some(value) = self.value(key) else {
            return Err(self.error(key, expected, "no such key"));
        };
        convert(value).ok_or_else(|| self.error(key, expected, value))
    }

    fn many<T: 'a>(
        self,
        key: &str,
        expected: &str,
        convert: fn(Value<'a>) -> Option<T>,
    ) -> Result<impl ExactSizeIterator<Item = T> + Clone + use<'a, T>> {
        let array = match self.value(key) {
            Some(Value::Array(array)) => array,
            Some(other) => return Err(self.error(key, expected, other)),
            None => return Err(self.error(key, expected, "no such key")),
        };
        if let Some((i, value)) = array.iter().enumerate().find(|(_, value)| convert(*value).is_none()) {
            return Err(self.error(key, expected, format_args!("{value} as element {i} of {array}")));
        }
        Ok(array.iter().map(move |value| convert(value).expect("every element was converted before")))
    }

    fn error(self, key: &str, expected: &str, found: impl fmt::Display) -> Error {
        Error::file(self.source.metadata_path(), format!("metadata {key}"), expected, found)
    }
}

impl<'a> Value<'a> {
    fn string(self) -> Option<&'a str> {
        if let Value::String(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    fn integer<T: TryFrom<i128>>(self) -> Option<T> {
        if let Value::Integer(value) = self { T::try_from(value).ok() } else { None }
    }

    fn float(self) -> Option<f32> {
        let Value::Float(value) = self else { return None };
        let narrow = value as f32;
        (narrow.is_finite() || !value.is_finite()).then_some(narrow)
    }

    fn bool(self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(value) } else { None }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Integer(value) => write!(f, "integer {value}"),
            // The shortest text of a float that was 32 bits in the file.
            Value::Float(value) if f64::from(*value as f32) == *value => write!(f, "float {:?}", *value as f32),
            Value::Float(value) => write!(f, "float {value:?}"),
            Value::Bool(value) => write!(f, "bool {value}"),
            Value::String(bytes) => write!(f, "string \"{}\"", Shown(bytes)),
            Value::Array(array) => write!(f, "{array}"),
        }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {} tensors", self.path.display(), self.tensors().len())
    }
}

/// A checkpoint of some kind, seen as a GGUF file.
trait Source: Send + Sync {
    /// The file that metadata come from.
    fn metadata_path(&self) -> &Path;
    fn n_keys(&self) -> usize;
    fn key(&self, i: usize) -> &str;
    fn value(&self, key: &str) -> Option<Value<'_>>;
    fn n_tensors(&self) -> usize;
    fn entry(&self, i: usize) -> TensorEntry<'_>;
    fn find(&self, name: &str) -> Option<usize>;
    /// The file of a tensor and its name there, as errors tell them.
    fn place(&self, i: usize) -> (&Path, String);
    /// What follows in an error on the dims that a model expects.
    fn shapes_from(&self) -> &str;
    /// The formats that are supported, as the checkpoint spells them.
    fn formats(&self) -> String;
    /// The weights of a tensor, which `entry` says to be of `format` and these dims.
    fn rows(&self, i: usize, format: &'static Format, rows: usize, cols: usize) -> WeightRows;
}

/// Maps a file.
fn map(path: &Path) -> Result<Bytes> {
    // A pipe would block in `open`, so ask first.
    if !std::fs::metadata(path).map_err(Error::io(path))?.is_file() {
        return Err(Error::file(path, "file type", "a regular file", "a directory or device"));
    }
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    // SAFETY: read-only; that nobody changes the file meanwhile is the documented condition of `Weights::open`.
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
    Ok(Bytes::mapped(map))
}

/// What a tensor stored in `format` is rounded to when a checkpoint is quantised to `wanted`.
fn quantized_format(wanted: &'static Format, entry: &TensorEntry, format: &Format) -> Option<&'static Format> {
    let [rows, cols] = entry.dims[..] else { return None };
    if rows == 1 || !entry.name.ends_with(".weight") || ![&F32, &F16, &BF16].contains(&format) {
        return None;
    }
    let precise = wanted.block_bytes < wanted.block_len && ["token_embd.weight", "output.weight"].contains(&entry.name);
    let fits = |f: &&'static Format| cols.is_multiple_of(f.block_len as u64);
    [if precise { &Q8_0 } else { wanted }, &Q8_0, &F16].into_iter().find(fits)
}

/// What is wrong with a file, before the file's name is added.
struct Fault {
    what: String,
    expected: String,
    found: String,
}

impl Fault {
    fn new(what: impl ToString, expected: impl ToString, found: impl ToString) -> Fault {
        Fault { what: what.to_string(), expected: expected.to_string(), found: found.to_string() }
    }

    fn of(self, path: &Path) -> Error {
        Error::file(path, self.what, self.expected, self.found)
    }
}

/// Text of a file as an error may print it: at most 80 bytes, control characters escaped.
#[derive(Clone, Copy)]
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const MOST: usize = 80;
        let text = String::from_utf8_lossy(&self.0[..self.0.len().min(MOST)]);
        let more = if self.0.len() > MOST { "…" } else { "" };
        write!(f, "{}{more}", text.escape_debug())
    }
}
