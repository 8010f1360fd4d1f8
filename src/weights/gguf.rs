//! GGUF versions 2 and 3, little-endian.
//!
//! Layout: magic, version, counts; metadata fields (key, type, value); tensor descriptions (name, dims, type, offset);
//! padding to the alignment; tensor bytes. Source: ggml, docs/gguf.md.
//!
//! [`Gguf::parse`] checks every length and offset of the file and keeps positions only; values are decoded when asked
//! for. A position takes fewer bytes than what it points to, so memory stays below twice the file's length.

use std::borrow::Cow;
use std::fmt::{self, Arguments};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Fault, Shown, Source, TensorEntry, Value};
use crate::Result;
use crate::format::{self, Format};
use crate::memory::{Bytes, WeightRows};

/// The positions of a file's fields and tensors.
pub(super) struct Gguf {
    path: PathBuf,
    bytes: Bytes,
    /// Where each field starts, in the file's order and by key.
    fields: Vec<usize>,
    fields_by_key: Vec<usize>,
    tensors: Vec<Tensor>,
    /// Indices into `tensors`.
    tensors_by_name: Vec<usize>,
}

/// An array of a metadata field.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    kind: u32,
    len: usize,
    /// The elements and all that follows them in the file.
    bytes: &'a [u8],
}

/// The elements of an [`Array`], decoded one by one.
#[derive(Clone)]
pub struct Elements<'a> {
    cursor: Cursor<'a>,
    kind: u32,
    left: usize,
}

impl Gguf {
    /// Checks the file and notes where everything is.
    pub(super) fn parse(path: &Path, bytes: Bytes) -> Result<Gguf> {
        parse(path, bytes).map_err(|fault| fault.of(path))
    }

    fn name(&self, i: usize) -> &str {
        text(name_at(&self.bytes, self.tensors[i].at))
    }
}

impl Source for Gguf {
    fn metadata_path(&self) -> &Path {
        &self.path
    }

    fn n_keys(&self) -> usize {
        self.fields.len()
    }

    fn key(&self, i: usize) -> &str {
        text(name_at(&self.bytes, self.fields[i]))
    }

    fn value(&self, key: &str) -> Option<Value<'_>> {
        value_of(&self.bytes, &self.fields_by_key, key)
    }

    fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    fn entry(&self, i: usize) -> TensorEntry<'_> {
        let tensor = &self.tensors[i];
        let mut cursor = Cursor { bytes: &self.bytes, at: tensor.at };
        let described = cursor.description(0).unwrap_or_else(|fault| unreachable!("checked in parse: {}", fault.what));
        TensorEntry {
            name: described.name,
            dims: described.dims[..described.n_dims].iter().rev().copied().collect(),
            format_name: match ggml_type(described.kind) {
                Some(known) => Cow::Borrowed(known.name),
                None => Cow::Owned(format!("ggml type {}", described.kind)),
            },
            format: Format::from_ggml(described.kind),
            bytes: tensor.bytes.clone(),
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        let found = self.tensors_by_name.binary_search_by(|i| self.name(*i).cmp(name)).ok()?;
        Some(self.tensors_by_name[found])
    }

    fn place(&self, i: usize) -> (&Path, String) {
        (&self.path, self.name(i).into())
    }

    fn shapes_from(&self) -> &str {
        ""
    }

    fn formats(&self) -> String {
        format::ALL.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
    }

    fn rows(&self, i: usize, format: &'static Format, rows: usize, cols: usize) -> WeightRows {
        WeightRows::new(format, rows, cols, self.bytes.slice(self.tensors[i].bytes.clone()))
    }
}

impl<'a> Array<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements { cursor: Cursor { bytes: self.bytes, at: 0 }, kind: self.kind, left: self.len }
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "array of {} × {}", self.len, VALUE_TYPES[self.kind as usize].0)
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let value = self.cursor.value(self.kind, format_args!("element")).ok()?;
        if let Value::Array(inner) = value {
            self.cursor.skip_elements(inner, 0, format_args!("element")).ok()?;
        }
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// Where a tensor's description starts, and its bytes; these are empty when the size of a block is not known.
struct Tensor {
    at: usize,
    bytes: Range<usize>,
}

/// A tensor's description as the file has it.
struct Description<'a> {
    name: &'a str,
    /// The contiguous one first; 1 behind `n_dims`.
    dims: [u64; 4],
    n_dims: usize,
    kind: u32,
    offset: u64,
}

/// Name and bytes in the file of each type of metadata values; of strings and arrays the least.
const VALUE_TYPES: [(&str, usize); 13] = [
    ("u8", 1),
    ("i8", 1),
    ("u16", 2),
    ("i16", 2),
    ("u32", 4),
    ("i32", 4),
    ("f32", 4),
    ("bool", 1),
    ("string", 8),
    ("array", 12),
    ("u64", 8),
    ("i64", 8),
    ("f64", 8),
];
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Arrays in one another; bounds the recursion.
const MAX_DEPTH: usize = 4;

/// The shortest field: length of an empty key, type, one byte.
const MIN_FIELD: u64 = 8 + 4 + 1;
/// The shortest tensor description: length of an empty name, number of dims, one dim, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

const MAX_ALIGNMENT: i128 = 1 << 20;

fn parse(path: &Path, bytes: Bytes) -> Result<Gguf, Fault> {
    let mut cursor = Cursor { bytes: &bytes, at: 0 };
    let (tensor_count, field_count) = header(&mut cursor)?;

    let mut fields = Vec::with_capacity(field_count);
    for i in 0..field_count {
        fields.push(cursor.at);
        let key = Shown(cursor.name(format_args!("key of metadata field {i}"))?.as_bytes());
        let kind = cursor.u32(format_args!("type of metadata {key}"))?;
        if let Value::Array(array) = cursor.value(kind, format_args!("metadata {key}"))? {
            cursor.skip_elements(array, 1, format_args!("metadata {key}"))?;
        }
    }
    let mut fields_by_key = fields.clone();
    fields_by_key.sort_unstable_by_key(|&at| name_at(&bytes, at));
    if let Some(pair) = fields_by_key.windows(2).find(|pair| name_at(&bytes, pair[0]) == name_at(&bytes, pair[1])) {
        let found = format!("it twice, at offsets {} and {}", pair[0].min(pair[1]), pair[0].max(pair[1]));
        return Err(Fault::new(format!("metadata {}", Shown(name_at(&bytes, pair[0]))), "the key once", found));
    }
    let alignment = alignment(value_of(&bytes, &fields_by_key, "general.alignment"))?;

    let descriptions = cursor.at;
    for i in 0..tensor_count {
        cursor.description(i)?;
    }
    let start = (cursor.at as u64).next_multiple_of(alignment);
    cursor.at = descriptions;
    let mut tensors = Vec::with_capacity(tensor_count);
    for i in 0..tensor_count {
        let at = cursor.at;
        let described = cursor.description(i)?;
        tensors.push(Tensor { at, bytes: described.range(start, alignment, bytes.len())? });
    }
    let mut order: Vec<usize> = (0..tensor_count).collect();
    no_overlap(&bytes, &tensors, &mut order)?;
    order.sort_unstable_by_key(|&i| name_at(&bytes, tensors[i].at));
    let name = |i: usize| name_at(&bytes, tensors[i].at);
    if let Some(pair) = order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        let found = format!("it twice, as tensors {} and {}", pair[0].min(pair[1]), pair[0].max(pair[1]));
        return Err(Fault::new(format!("tensor {}", Shown(name(pair[0]))), "the name once", found));
    }
    Ok(Gguf { path: path.into(), bytes, fields, fields_by_key, tensors, tensors_by_name: order })
}

/// Numbers of tensors and of metadata fields, both possible in a file of this length.
fn header(cursor: &mut Cursor) -> Result<(usize, usize), Fault> {
    if !cursor.bytes.starts_with(b"GGUF") {
        return Err(Fault::new("magic", "GGUF", looks_like(cursor.bytes)));
    }
    cursor.at = 4;
    let version = cursor.u32(format_args!("version"))?;
    if !(2..=3).contains(&version) {
        let found = match version.swap_bytes() {
            big @ 1..=3 => format!("version {big} in big-endian byte order"),
            _ => format!("version {version}"),
        };
        return Err(Fault::new("version", "version 2 or 3 in little-endian byte order", found));
    }
    let tensors = cursor.u64(format_args!("tensor count"))?;
    let fields = cursor.u64(format_args!("metadata count"))?;
    let left = (cursor.bytes.len() - cursor.at) as u64;
    for (what, count, least) in [("tensor count", tensors, MIN_TENSOR), ("metadata count", fields, MIN_FIELD)] {
        if count > left / least {
            let expected = format!("at most {}, as {left} bytes are left in the file", left / least);
            return Err(Fault::new(what, expected, count));
        }
    }
    // Both are below the file's length, which is a usize.
    Ok((tensors as usize, fields as usize))
}

/// What a file that is not as expected probably is.
pub(super) fn looks_like(bytes: &[u8]) -> String {
    let known: [(&[u8], &str); 11] = [
        (b"lmgg", "GGML, the format before GGUF; convert it"),
        (b"fmgg", "GGMF, the format before GGUF; convert it"),
        (b"tjgg", "GGJT, the format before GGUF; convert it"),
        (b"algg", "GGLA, the adapter format before GGUF"),
        (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
        (b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"),
        (b"\x1f\x8b", "gzip"),
        (b"\x89HDF", "HDF5"),
        (b"version https://git-lfs", "a Git LFS pointer; the file itself was not downloaded"),
        (b"{", "JSON"),
        (b"FUGG", "GGUF with its bytes swapped"),
    ];
    let start = bytes.trim_ascii_start();
    if bytes.is_empty() {
        "an empty file".into()
    } else if let Some((_, name)) = known.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        name.to_string()
    } else if bytes.get(8) == Some(&b'{') {
        "safetensors".into()
    } else if start.starts_with(b"<") {
        "HTML or XML, perhaps the error page of a download".into()
    } else {
        format!("\"{}\"", Shown(&bytes[..bytes.len().min(4)]))
    }
}

fn alignment(value: Option<Value>) -> Result<u64, Fault> {
    match value {
        None => Ok(32),
        Some(Value::Integer(value)) if (8..=MAX_ALIGNMENT).contains(&value) && value.count_ones() == 1 => {
            Ok(value as u64)
        }
        Some(value) => {
            let expected = format!("a power of two from 8 to {MAX_ALIGNMENT}");
            Err(Fault::new("metadata general.alignment", expected, value))
        }
    }
}

/// Sorts `order` by the position of tensor bytes; those of unknown length cannot be compared.
fn no_overlap(bytes: &[u8], tensors: &[Tensor], order: &mut [usize]) -> Result<(), Fault> {
    order.sort_unstable_by_key(|&i| (tensors[i].bytes.start, tensors[i].bytes.end));
    let mut before: Option<&Tensor> = None;
    for tensor in order.iter().map(|&i| &tensors[i]).filter(|tensor| !tensor.bytes.is_empty()) {
        if let Some(before) = before.filter(|before| tensor.bytes.start < before.bytes.end) {
            return Err(Fault::new(
                format!("tensor {}: bytes", Shown(name_at(bytes, tensor.at))),
                format!("none of tensor {}, {:?}", Shown(name_at(bytes, before.at)), before.bytes),
                format!("{:?}", tensor.bytes),
            ));
        }
        before = Some(tensor);
    }
    Ok(())
}

impl Description<'_> {
    /// Where the bytes are in a file of `file_len` bytes whose tensor bytes begin at `start`.
    fn range(&self, start: u64, alignment: u64, file_len: usize) -> Result<Range<usize>, Fault> {
        let what = |field: &str| format!("tensor {}: {field}", Shown(self.name.as_bytes()));
        if !self.offset.is_multiple_of(alignment) {
            return Err(Fault::new(what("offset"), format!("a multiple of {alignment}"), self.offset));
        }
        let len = match ggml_type(self.kind) {
            None => 0u128,
            Some(known) => {
                if !self.dims[0].is_multiple_of(known.block_len) {
                    let expected = format!("a multiple of {}, the block of {}", known.block_len, known.name);
                    return Err(Fault::new(what("row length"), expected, self.dims[0]));
                }
                // The product fits, as `Cursor::description` checked; u128 holds it times the bytes of a block.
                u128::from(self.dims.iter().product::<u64>() / known.block_len) * u128::from(known.block_bytes)
            }
        };
        let first = u128::from(start) + u128::from(self.offset);
        if first + len > file_len as u128 {
            let expected = format!("an end within the file's {file_len} bytes");
            return Err(Fault::new(what("bytes"), expected, format!("{first}..{}", first + len)));
        }
        Ok(first as usize..(first + len) as usize)
    }
}

/// A position in the file. Every read is checked and names what it reads.
#[derive(Clone)]
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: Arguments) -> Result<&'a [u8], Fault> {
        let left = &self.bytes[self.at..];
        let Some(taken) = left.get(..len) else {
            let found = format!("the end of the file after {}", left.len());
            return Err(Fault::new(what, format!("{len} bytes at offset {}", self.at), found));
        };
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: Arguments) -> Result<[u8; N], Fault> {
        Ok(self.take(N, what)?.try_into().expect("take returns N bytes"))
    }

    fn u32(&mut self, what: Arguments) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: Arguments) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things of at least `least` bytes each.
    fn count(&mut self, least: usize, what: Arguments) -> Result<usize, Fault> {
        let count = self.u64(what)?;
        let most = (self.bytes.len() - self.at) / least;
        if count > most as u64 {
            return Err(Fault::new(what, format!("at most {most} before the end of the file"), count));
        }
        Ok(count as usize)
    }

    fn string(&mut self, what: Arguments) -> Result<&'a [u8], Fault> {
        let len = self.count(1, format_args!("length of {what}"))?;
        self.take(len, what)
    }

    fn name(&mut self, what: Arguments) -> Result<&'a str, Fault> {
        let bytes = self.string(what)?;
        std::str::from_utf8(bytes).map_err(|_| Fault::new(what, "UTF-8", format!("\"{}\"", Shown(bytes))))
    }

    /// A value; of an array only its head, so that the elements are next.
    fn value(&mut self, kind: u32, what: Arguments) -> Result<Value<'a>, Fault> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array(what)?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Integer(self.u32(what)?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => Value::Bool(self.array(what)? != [0]),
            STRING => Value::String(self.string(what)?),
            ARRAY => {
                let kind = self.u32(format_args!("element type of {what}"))?;
                let Some((_, least)) = VALUE_TYPES.get(kind as usize) else {
                    return Err(unknown_value_type(format_args!("element type of {what}"), kind));
                };
                let len = self.count(*least, format_args!("array length of {what}"))?;
                Value::Array(Array { kind, len, bytes: &self.bytes[self.at..] })
            }
            10 => Value::Integer(self.u64(what)?.into()),
            11 => Value::Integer(i64::from_le_bytes(self.array(what)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            _ => return Err(unknown_value_type(format_args!("type of {what}"), kind)),
        })
    }

    fn skip_elements(&mut self, array: Array, depth: usize, what: Arguments) -> Result<(), Fault> {
        match array.kind {
            STRING => {
                for i in 0..array.len {
                    self.string(format_args!("element {i} of {what}"))?;
                }
            }
            ARRAY if depth == MAX_DEPTH => {
                let expected = format!("at most {MAX_DEPTH} arrays in one another");
                return Err(Fault::new(what, expected, "more"));
            }
            ARRAY => {
                for _ in 0..array.len {
                    if let Value::Array(inner) = self.value(ARRAY, what)? {
                        self.skip_elements(inner, depth + 1, what)?;
                    }
                }
            }
            // `count` has seen that the product is within the file.
            _ => drop(self.take(array.len * VALUE_TYPES[array.kind as usize].1, what)?),
        }
        Ok(())
    }

    fn description(&mut self, i: usize) -> Result<Description<'a>, Fault> {
        let name = self.name(format_args!("name of tensor {i}"))?;
        let tensor = Shown(name.as_bytes());
        let n_dims = self.u32(format_args!("tensor {tensor}: number of dims"))?;
        if !(1..=4).contains(&n_dims) {
            return Err(Fault::new(format_args!("tensor {tensor}: number of dims"), "1 to 4", n_dims));
        }
        let mut dims = [1; 4];
        for dim in &mut dims[..n_dims as usize] {
            *dim = self.u64(format_args!("tensor {tensor}: dims"))?;
        }
        let weights = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        if weights.is_none_or(|weights| weights == 0 || weights > i64::MAX as u64) {
            let found = format!("{:?}", &dims[..n_dims as usize]);
            let expected = "positive ones whose product is below 2^63";
            return Err(Fault::new(format_args!("tensor {tensor}: dims"), expected, found));
        }
        let kind = self.u32(format_args!("tensor {tensor}: type"))?;
        let offset = self.u64(format_args!("tensor {tensor}: offset"))?;
        Ok(Description { name, dims, n_dims: n_dims as usize, kind, offset })
    }
}

fn unknown_value_type(what: Arguments, kind: u32) -> Fault {
    Fault::new(what, "a value type from 0 to 12", kind)
}

/// The key of the field or the name of the tensor that starts at `at`, which `parse` has read once.
fn name_at(bytes: &[u8], at: usize) -> &[u8] {
    Cursor { bytes, at }.string(format_args!("name")).unwrap_or_default()
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or_default()
}

fn value_of<'a>(bytes: &'a [u8], fields_by_key: &[usize], key: &str) -> Option<Value<'a>> {
    let i = fields_by_key.binary_search_by(|&at| name_at(bytes, at).cmp(key.as_bytes())).ok()?;
    let mut cursor = Cursor { bytes, at: fields_by_key[i] };
    cursor.string(format_args!("key")).ok()?;
    let kind = cursor.u32(format_args!("type")).ok()?;
    cursor.value(kind, format_args!("value")).ok()
}

struct GgmlType {
    number: u32,
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
}

fn ggml_type(number: u32) -> Option<&'static GgmlType> {
    GGML_TYPES.iter().find(|known| known.number == number)
}

const fn ggml(number: u32, name: &'static str, block_len: u64, block_bytes: u64) -> GgmlType {
    GgmlType { number, name, block_len, block_bytes }
}

/// Every type that ggml stores. Source: ggml.h `ggml_type`, ggml-common.h.
static GGML_TYPES: &[GgmlType] = &[
    ggml(0, "F32", 1, 4),
    ggml(1, "F16", 1, 2),
    ggml(2, "Q4_0", 32, 18),
    ggml(3, "Q4_1", 32, 20),
    ggml(6, "Q5_0", 32, 22),
    ggml(7, "Q5_1", 32, 24),
    ggml(8, "Q8_0", 32, 34),
    ggml(9, "Q8_1", 32, 36),
    ggml(10, "Q2_K", 256, 84),
    ggml(11, "Q3_K", 256, 110),
    ggml(12, "Q4_K", 256, 144),
    ggml(13, "Q5_K", 256, 176),
    ggml(14, "Q6_K", 256, 210),
    ggml(15, "Q8_K", 256, 292),
    ggml(16, "IQ2_XXS", 256, 66),
    ggml(17, "IQ2_XS", 256, 74),
    ggml(18, "IQ3_XXS", 256, 98),
    ggml(19, "IQ1_S", 256, 50),
    ggml(20, "IQ4_NL", 32, 18),
    ggml(21, "IQ3_S", 256, 110),
    ggml(22, "IQ2_S", 256, 82),
    ggml(23, "IQ4_XS", 256, 136),
    ggml(24, "I8", 1, 1),
    ggml(25, "I16", 1, 2),
    ggml(26, "I32", 1, 4),
    ggml(27, "I64", 1, 8),
    ggml(28, "F64", 1, 8),
    ggml(29, "IQ1_M", 256, 56),
    ggml(30, "BF16", 1, 2),
    ggml(34, "TQ1_0", 256, 54),
    ggml(35, "TQ2_0", 256, 66),
    ggml(39, "MXFP4", 32, 17),
    ggml(40, "NVFP4", 64, 36),
    ggml(41, "Q1_0", 128, 18),
];
