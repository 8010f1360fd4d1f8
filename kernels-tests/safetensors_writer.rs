//! Writes checkpoints as Hugging Face lays them out, in memory: valid ones by default, invalid ones through public fields.

use std::collections::BTreeMap;
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};

use farpast::format::Format;
use farpast::memory::Bytes;
use farpast::weights::Weights;
use farpast::{Error, Result};
use serde_json::{Value, json};

use crate::gguf_writer::encode;

/// A tensor as a header describes it; `name` is written as it is.
#[derive(Clone)]
pub struct Raw {
    pub name: String,
    pub dtype: String,
    pub dims: Vec<u64>,
    /// Where the bytes are said to be; `None` where they are.
    pub offsets: Option<[u64; 2]>,
    pub bytes: Vec<u8>,
}

impl Raw {
    /// Weights rounded to F32, F16 or BF16.
    pub fn new(name: &str, format: &Format, dims: &[usize], weights: &[f32]) -> Self {
        assert_eq!(weights.len(), dims.iter().product::<usize>(), "weights of {name}");
        let dims = dims.iter().map(|d| *d as u64).collect();
        Self { name: name.into(), dtype: format.name.into(), dims, offsets: None, bytes: encode(format, weights) }
    }
}

/// A file of these tensors.
pub fn file(tensors: &[Raw]) -> Vec<u8> {
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_string()];
    let mut at = 0;
    for Raw { name, dtype, dims, offsets, bytes } in tensors {
        let offsets = offsets.unwrap_or([at, at + bytes.len() as u64]);
        at += bytes.len() as u64;
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":{offsets:?}}}"#));
    }
    with_header(
        &format!("{{{}}}", entries.join(",")),
        &tensors.iter().flat_map(|t| t.bytes.clone()).collect::<Vec<_>>(),
    )
}

/// A file of this header, padded to 8 bytes as others write it.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let len = header.len().next_multiple_of(8);
    let padding = " ".repeat(len - header.len());
    [&(len as u64).to_le_bytes(), header.as_bytes(), padding.as_bytes(), data].concat()
}

/// The files of a folder by name.
#[derive(Clone, Default)]
pub struct Folder(pub BTreeMap<String, Vec<u8>>);

impl Folder {
    /// One file of weights.
    pub fn new(config: &Value, tensors: &[Raw]) -> Self {
        Self::default().with("config.json", config.to_string()).with("model.safetensors", file(tensors))
    }

    /// `n` files and an index.
    pub fn sharded(config: &Value, tensors: &[Raw], n: usize) -> Self {
        let mut folder = Self::default().with("config.json", config.to_string());
        let mut map = serde_json::Map::new();
        for (i, part) in tensors.chunks(tensors.len().div_ceil(n)).enumerate() {
            let name = format!("model-{:05}-of-{n:05}.safetensors", i + 1);
            part.iter().for_each(|t| drop(map.insert(t.name.clone(), json!(name))));
            folder = folder.with(&name, file(part));
        }
        let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        folder.with("model.safetensors.index.json", index.to_string())
    }

    pub fn with(mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.insert(name.into(), bytes.into());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// Bytes of all files.
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn open(&self) -> Result<Weights> {
        self.open_at("toy")
    }

    /// Opens the folder `toy` or a file in it. Its bytes are copied before, so that opening alone is measured.
    pub fn open_at(&self, path: &str) -> Result<Weights> {
        let files = self.bytes();
        Weights::from_files(path, |path| read(&files, path))
    }

    pub fn bytes(&self) -> BTreeMap<PathBuf, Bytes> {
        self.0.iter().map(|(name, bytes)| (Path::new("toy").join(name), Bytes::new(bytes.clone()))).collect()
    }
}

pub fn read(files: &BTreeMap<PathBuf, Bytes>, path: &Path) -> Result<Bytes> {
    let absent = || Error::Io { path: path.into(), source: IoError::from(ErrorKind::NotFound) };
    files.get(path).cloned().ok_or_else(absent)
}
