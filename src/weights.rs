//! A checkpoint by tensor name, dims checked, and its metadata by key.

mod gguf;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use self::gguf::Gguf;
pub use self::gguf::{Array, Elements};
use crate::format::{self, Format};
use crate::memory::{Bytes, WeightRows};
use crate::{Error, Result};

/// An open checkpoint. Tensor bytes stay in the mapped file until they are read.
pub struct Weights {
    path: PathBuf,
    bytes: Bytes,
    #[cfg_attr(not(unix), allow(dead_code))]
    map: Option<Arc<Mmap>>,
    file: Gguf,
}

/// What the checkpoint says of one tensor, whether or not its format is supported.
#[derive(Clone, Debug)]
pub struct TensorEntry<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Dims, the contiguous one last.
    pub dims: Vec<u64>,
    /// The format's name as ggml prints it, or its number.
    pub format_name: Cow<'static, str>,
    /// The format when it is supported.
    pub format: Option<&'static Format>,
    /// Where in the file its bytes are; empty when the size of a block is not known.
    pub bytes: Range<usize>,
}

/// Typed access to the metadata of a checkpoint.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    path: &'a Path,
    file: &'a Gguf,
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
    /// Maps and checks a GGUF file.
    ///
    /// All offsets and lengths are checked here; tensor bytes are not touched. The file must not be changed or
    /// truncated by anyone while it is open: the operating system shows such changes in mapped memory.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights> {
        let path = path.as_ref();
        // A pipe would block in `open`, so ask first.
        if !std::fs::metadata(path).map_err(Error::io(path))?.is_file() {
            return Err(Error::file(path, "file type", "a regular file", "a directory or device"));
        }
        let file = std::fs::File::open(path).map_err(Error::io(path))?;
        // SAFETY: read-only; that nobody changes the file meanwhile is this function's documented condition.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(Error::io(path))?);
        let weights = Weights::from_bytes(path, Bytes::new(Mapped(map.clone())))?;
        Ok(Weights { map: Some(map), ..weights })
    }

    /// Checks a GGUF file that is in memory; `path` only names it in errors.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Bytes) -> Result<Weights> {
        let path = path.into();
        let file = Gguf::parse(&path, bytes.clone())?;
        Ok(Weights { path, bytes, map: None, file })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { path: &self.path, file: &self.file }
    }

    /// All tensors in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorEntry<'_>> {
        self.file.tensors()
    }

    /// Whether the checkpoint has this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// The tensor of this name, which must be `rows × cols` in a supported format. A vector has one row.
    pub fn tensor(&self, name: &str, rows: usize, cols: usize) -> Result<WeightRows> {
        let error = |expected: String, found: String| {
            Err(Error::Tensor { path: self.path.clone(), name: name.into(), expected, found })
        };
        let Some(entry) = self.file.tensor(name) else {
            let found = match self.similar(name) {
                Some(similar) => format!("no such tensor; similar: {}", Shown(similar.as_bytes())),
                None => "no such tensor".into(),
            };
            return error(format!("{rows} × {cols}"), found);
        };
        let outer = entry.dims.iter().take_while(|&&d| d == 1).count().min(entry.dims.len() - 1);
        let matches = match entry.dims[outer..] {
            [c] => (rows as u64, cols as u64) == (1, c),
            [r, c] => (rows as u64, cols as u64) == (r, c),
            _ => false,
        };
        if !matches {
            let dims: Vec<_> = entry.dims.iter().map(u64::to_string).collect();
            return error(format!("{rows} × {cols}"), format!("{} {}", dims.join(" × "), entry.format_name));
        }
        let Some(format) = entry.format else {
            let names: Vec<_> = format::ALL.iter().map(|f| f.name).collect();
            return error(format!("a format of {}", names.join(", ")), entry.format_name.into());
        };
        Ok(WeightRows { format, rows, cols, bytes: self.bytes.slice(entry.bytes) })
    }

    /// Tells the operating system that this tensor's part of the file will not be read again soon, to free its memory.
    ///
    /// Reading it afterwards is correct and reads the file again. Does nothing on systems other than Unix.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let (Some(map), Some(entry)) = (&self.map, self.file.tensor(name)) {
            // A multiple of every page size in use, so no neighbour's page is dropped.
            const STEP: usize = 64 << 10;
            let (start, end) = (entry.bytes.start.next_multiple_of(STEP), entry.bytes.end / STEP * STEP);
            if start < end {
                // SAFETY: the mapping is shared and read-only, so dropped pages come back with the file's bytes.
                let advised =
                    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
                // A refusal costs memory, nothing else.
                let _ = advised;
            }
        }
        #[cfg(not(unix))]
        let _ = name;
    }

    /// The name that shares the longest start and end with `name`, if that is more than half of it.
    fn similar(&self, name: &str) -> Option<&str> {
        let common = |other: &str| {
            let prefix = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            let suffix = name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
            prefix + suffix
        };
        let best = self.file.names().max_by_key(|other| common(other))?;
        (common(best) * 2 > name.len()).then_some(best)
    }
}

impl<'a> Metadata<'a> {
    /// All keys in the file's order.
    pub fn keys(self) -> impl ExactSizeIterator<Item = &'a str> {
        self.file.keys()
    }

    /// Whether there is a value of this key.
    pub fn contains(self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value of `key`, whatever its type.
    pub fn value(self, key: &str) -> Option<Value<'a>> {
        self.file.value(key)
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
        Error::file(self.path, format!("metadata {key}"), expected, found)
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

/// The mapped file as the owner of `Bytes`.
struct Mapped(Arc<Mmap>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
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
