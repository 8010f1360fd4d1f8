//! Files of safetensors: the length of a header as u64, the header as JSON, tensor bytes without holes.
//!
//! Source: huggingface/safetensors, README.md, section "Format". The crate of that name takes the last of two tensors of
//! one name and refuses a file for a dtype that nobody asks for; hence this reader.
//!
//! [`File::parse`] checks every offset and keeps positions only, fewer bytes than the header has.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::gguf::looks_like;
use super::{Fault, Shown};
use crate::Result;
use crate::format::{BF16, F16, F32, Format};
use crate::memory::Bytes;

/// A file whose header has been checked.
pub(super) struct File {
    pub path: PathBuf,
    pub bytes: Bytes,
    /// By name.
    tensors: Vec<Position>,
}

/// A tensor as the header describes it.
pub(super) struct Entry<'a> {
    pub dtype: &'a str,
    /// The contiguous one last; never empty.
    pub dims: Vec<u64>,
    /// Where in the file its bytes are.
    pub bytes: Range<usize>,
}

impl File {
    /// Checks the header and that the tensors fill the rest of the file.
    pub fn parse(path: &Path, bytes: Bytes) -> Result<File> {
        let positions = parse(&bytes).map_err(|fault| fault.of(path))?;
        Ok(File { path: path.into(), bytes, tensors: positions })
    }

    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Names are sorted.
    pub fn name(&self, i: usize) -> &str {
        let Position { at, len, .. } = self.tensors[i];
        std::str::from_utf8(&self.bytes[START + at as usize..][..len as usize]).unwrap_or_default()
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.tensors.binary_search_by(|position| name_of(&self.bytes, position).cmp(name.as_bytes())).ok()
    }

    pub fn entry(&self, i: usize) -> Entry<'_> {
        let Position { at, len, bytes } = &self.tensors[i];
        let behind = &self.bytes[START + (at + len) as usize + 1..];
        let colon = behind.iter().position(|byte| *byte == b':').expect("checked in parse");
        let mut json = serde_json::Deserializer::from_slice(&behind[colon + 1..]);
        let described = Description::deserialize(&mut json).expect("checked in parse");
        let dims = described.shape.as_slice();
        Entry {
            dtype: described.dtype,
            dims: if dims.is_empty() { vec![1] } else { dims.to_vec() },
            bytes: bytes.clone(),
        }
    }
}

/// dtypes that are read.
pub(super) const SUPPORTED: &str = "F32, F16, BF16";

pub(super) fn format(dtype: &str) -> Option<&'static Format> {
    [&F32, &F16, &BF16].into_iter().find(|format| format.name == dtype)
}

/// Bytes as text for a JSON parser. A string of it may end in an error message and is therefore bounded.
pub(super) fn json(bytes: &[u8], most: usize) -> Result<&str, Fault> {
    if bytes.len() > most {
        return Err(Fault::new("length", format!("at most {most} bytes"), bytes.len()));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(Fault::new("JSON", "UTF-8", "other bytes"));
    };
    let (mut quoted, mut escaped, mut since) = (false, false, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => (quoted, since) = (!quoted, at),
            _ => {}
        }
        if quoted && at - since > MAX_STRING {
            return Err(Fault::new("JSON", format!("strings of at most {MAX_STRING} bytes"), "a longer one"));
        }
    }
    Ok(text)
}

/// What a JSON parser says, shortened.
pub(super) fn json_fault(error: serde_json::Error) -> Fault {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    let found: String = text.chars().filter(|c| !c.is_control()).take(160).collect();
    Fault::new(format!("JSON at line {line}, column {column}"), "the fields of such a file", found)
}

/// Bytes before the header.
const START: usize = 8;
/// As the crate of the format's authors has it.
const MAX_HEADER: usize = 100_000_000;
const MAX_STRING: usize = 64 << 10;
const MAX_DIMS: usize = 8;

/// A tensor's name in the header, and its bytes in the file.
struct Position {
    at: u32,
    len: u32,
    bytes: Range<usize>,
}

/// A value of the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description<'a> {
    dtype: &'a str,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape {
    dims: [u64; MAX_DIMS],
    len: usize,
}

impl Shape {
    fn as_slice(&self) -> &[u64] {
        &self.dims[..self.len]
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "at most {MAX_DIMS} dims")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Shape, A::Error> {
        let mut shape = Shape { dims: [0; MAX_DIMS], len: 0 };
        while let Some(dim) = elements.next_element()? {
            if shape.len == MAX_DIMS {
                return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
            }
            shape.dims[shape.len] = dim;
            shape.len += 1;
        }
        Ok(shape)
    }
}

/// Calls a function with each tensor of a header, up to the first fault.
struct Tensors<'a, F> {
    f: F,
    fault: &'a mut Option<Fault>,
}

impl<'de, F: FnMut(&'de str, Description<'de>) -> Result<(), Fault>> Visitor<'de> for Tensors<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object of tensors by names without escapes")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<&str>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else if let Err(fault) = (self.f)(name, map.next_value()?) {
                *self.fault = Some(fault);
                return Err(A::Error::custom("a fault"));
            }
        }
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<Vec<Position>, Fault> {
    let Some((len, rest)) = bytes.split_first_chunk::<START>() else {
        return Err(Fault::new("length", "at least 8 bytes", bytes.len()));
    };
    let len = u64::from_le_bytes(*len);
    if len > rest.len().min(MAX_HEADER) as u64 {
        let expected = format!("at most {}, with {} bytes in the file", rest.len().min(MAX_HEADER), bytes.len());
        return Err(Fault::new(
            "length of the header",
            expected,
            format!("{len}; the file looks like {}", looks_like(bytes)),
        ));
    }
    let (header, data) = rest.split_at(len as usize);
    let header = json(header, MAX_HEADER)?;
    let start = START + header.len();

    let mut count = 0;
    each(header, |_, _| {
        count += 1;
        Ok(())
    })?;
    let mut positions = Vec::with_capacity(count);
    each(header, |name, described| {
        let range = described.range(name, data.len())?;
        // Both are within the header, which is shorter than 2^32.
        let at = name.as_ptr() as usize - header.as_ptr() as usize;
        let bytes = start + range.start..start + range.end;
        positions.push(Position { at: at as u32, len: name.len() as u32, bytes });
        Ok(())
    })?;

    let what = |position: &Position| format!("tensor {}: bytes", Shown(name_of(bytes, position)));
    positions.sort_unstable_by_key(|position| (position.bytes.start, position.bytes.end));
    let mut end = start;
    for position in &positions {
        if position.bytes.start != end {
            let expected = format!("a start at {end}, where those before it end");
            return Err(Fault::new(what(position), expected, format!("{:?}", position.bytes)));
        }
        end = position.bytes.end;
    }
    if end != bytes.len() {
        let found = format!("{} bytes that are no tensor's", bytes.len() - end);
        return Err(Fault::new("end of the file", "the end of the last tensor", found));
    }
    positions.sort_unstable_by_key(|position| name_of(bytes, position));
    if let Some(pair) = positions.windows(2).find(|pair| name_of(bytes, &pair[0]) == name_of(bytes, &pair[1])) {
        let what = format!("tensor {}", Shown(name_of(bytes, &pair[0])));
        return Err(Fault::new(what, "the name once", "it twice"));
    }
    Ok(positions)
}

fn each<'a>(header: &'a str, f: impl FnMut(&'a str, Description<'a>) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut json = serde_json::Deserializer::from_str(header);
    let mut fault = None;
    let read = (&mut json).deserialize_map(Tensors { f, fault: &mut fault }).and_then(|()| json.end());
    read.map_err(|error| fault.unwrap_or_else(|| json_fault(error)))
}

fn name_of<'a>(bytes: &'a [u8], position: &Position) -> &'a [u8] {
    &bytes[START + position.at as usize..][..position.len as usize]
}

impl Description<'_> {
    /// The bytes behind the header, of which there are `most`.
    fn range(&self, name: &str, most: usize) -> Result<Range<usize>, Fault> {
        let what = |field: &str| format!("tensor {}: {field}", Shown(name.as_bytes()));
        let [start, end] = self.data_offsets;
        if start > end || end > most as u64 {
            let expected = format!("a start before an end of at most {most}");
            return Err(Fault::new(what("data_offsets"), expected, format!("{start}, {end}")));
        }
        let dims = self.shape.as_slice();
        // A dtype that is not known has any size.
        let Some(bits) = bits(self.dtype) else { return Ok(start as usize..end as usize) };
        let Some(bits) = dims.iter().try_fold(bits, |product, dim| product.checked_mul(*dim)) else {
            return Err(Fault::new(what("shape"), "a size below 2^64 bits", format!("{dims:?}")));
        };
        if bits.div_ceil(8) != end - start {
            let expected = format!("{} bytes, of {dims:?} {}", bits.div_ceil(8), self.dtype);
            return Err(Fault::new(what("data_offsets"), expected, format!("{} bytes", end - start)));
        }
        Ok(start as usize..end as usize)
    }
}

/// Bits of an element of each dtype that the format has.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "I8" | "U8" | "BOOL" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E5M2FNUZ" | "F8_E4M3FNUZ" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}
