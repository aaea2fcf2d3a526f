//! `points.jsonl`: rows in the order of the sweep, appended and synced by the chunk.
//!
//! Invariants: the file is always a beginning of the finished one, and perhaps half a line. A row that was written is never computed
//! again: what another form of the sweep left is kept in `earlier.jsonl` and used by its key.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows on disk, and those that are known by their keys.
pub struct Store {
    file: File,
    folder: PathBuf,
    /// Bytes of the file that are as they should be.
    n_bytes: u64,
    /// Lines of the file after those.
    ahead: VecDeque<Arc<str>>,
    /// Lines by key: of this file, of earlier ones and of shards.
    known: BTreeMap<String, Arc<str>>,
}

/// The key at the beginning of a line; `None` where the line is cut or is no row.
fn key(line: &str) -> Option<&str> {
    let rest = line.split_once("\"key\":\"")?.1;
    line.ends_with("}\n").then(|| rest.split_once('"').map(|(key, _)| key)).flatten()
}

/// Whole lines of a file; what was cut is left out.
fn lines(path: &Path) -> io::Result<Vec<Arc<str>>> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let text = std::str::from_utf8(&bytes)
        .unwrap_or_else(|error| std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("it is valid up to there"));
    let whole = |line: &&str| key(line).is_some() && serde_json::from_str::<serde_json::Value>(line).is_ok();
    Ok(text.split_inclusive('\n').take_while(whole).map(Arc::from).collect())
}

/// Files of rows in a folder beside the one that is written.
fn others(folder: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file != name && file.ends_with(".jsonl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

impl Store {
    /// Opens the file of that name in a folder, with what it and its neighbours know.
    ///
    /// # Errors
    /// What the disk said.
    pub fn open(folder: &Path, name: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(name);
        let ahead: VecDeque<Arc<str>> = lines(&path)?.into();
        let mut known = BTreeMap::new();
        let remember = |known: &mut BTreeMap<String, Arc<str>>, line: &Arc<str>| {
            key(line).map(|key| known.insert(key.to_owned(), Arc::clone(line)));
        };
        for other in others(folder, name)? {
            lines(&other)?.iter().for_each(|line| remember(&mut known, line));
        }
        ahead.iter().for_each(|line| remember(&mut known, line));
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        let store = Self { file, folder: folder.to_path_buf(), n_bytes: 0, ahead, known };
        // Half a line at the end was never synced whole.
        store.file.set_len(store.ahead.iter().map(|line| line.len() as u64).sum())?;
        Ok(store)
    }

    /// The line of a key, where it was computed before.
    pub fn known(&self, key: &str) -> Option<&str> {
        self.known.get(key).map(AsRef::as_ref)
    }

    /// Puts the next lines into the file, where they are not yet; synced when it returns.
    ///
    /// # Errors
    /// What the disk said.
    pub fn append(&mut self, lines: &[String]) -> io::Result<()> {
        let mut new = String::new();
        for line in lines {
            if new.is_empty() && self.ahead.front().is_some_and(|ahead| **ahead == **line) {
                self.ahead.pop_front();
                self.n_bytes += line.len() as u64;
                continue;
            }
            self.keep_earlier()?;
            new.push_str(line);
        }
        if new.is_empty() {
            return Ok(());
        }
        self.file.seek(io::SeekFrom::Start(self.n_bytes))?;
        self.file.write_all(new.as_bytes())?;
        self.file.sync_data()?;
        self.n_bytes += new.len() as u64;
        Ok(())
    }

    /// Cuts off what does not belong to this sweep, after it was kept elsewhere.
    fn keep_earlier(&mut self) -> io::Result<()> {
        if self.ahead.is_empty() {
            return Ok(());
        }
        let rest = self.ahead.drain(..).fold(String::new(), |rest, line| rest + &line);
        let path = self.folder.join("earlier.jsonl");
        // A kill may have left half a line there.
        let whole: u64 = lines(&path)?.iter().map(|line| line.len() as u64).sum();
        let mut earlier = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        earlier.set_len(whole)?;
        earlier.seek(io::SeekFrom::Start(whole))?;
        earlier.write_all(rest.as_bytes())?;
        earlier.sync_data()?;
        self.file.set_len(self.n_bytes)
    }

    /// Ends the file where the sweep ends.
    ///
    /// # Errors
    /// What the disk said.
    pub fn finish(mut self) -> io::Result<()> {
        self.keep_earlier()?;
        self.file.set_len(self.n_bytes)?;
        self.file.sync_data()
    }
}
