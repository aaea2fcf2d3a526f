//! Tables of FlatBuffers, as far as Arrow's metadata needs them (google/flatbuffers, "FlatBuffer Internals").
//!
//! A table begins with how far back its list of places lies; a place that is missing or 0 has the default. Every read is checked against the bytes
//! that are there. Numbers are little-endian.

/// Bytes that end before what they promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutShort;

/// A table inside of its bytes.
#[derive(Clone, Copy)]
pub struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// So many bytes from a place on.
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], CutShort> {
    let end = at.checked_add(N).ok_or(CutShort)?;
    bytes.get(at..end).and_then(|found| found.try_into().ok()).ok_or(CutShort)
}

fn unsigned(bytes: &[u8], at: usize) -> Result<usize, CutShort> {
    usize::try_from(u32::from_le_bytes(array(bytes, at)?)).map_err(|_| CutShort)
}

/// What a place points to.
fn target(bytes: &[u8], at: usize) -> Result<usize, CutShort> {
    at.checked_add(unsigned(bytes, at)?).ok_or(CutShort)
}

impl<'b> Table<'b> {
    /// The table that the bytes are.
    pub fn root(bytes: &'b [u8]) -> Result<Self, CutShort> {
        Ok(Self { bytes, at: unsigned(bytes, 0)? })
    }

    /// Place of a field; `None` where it has its default.
    fn place(&self, field: usize) -> Result<Option<usize>, CutShort> {
        let back = i64::from(i32::from_le_bytes(array(self.bytes, self.at)?));
        let here = i64::try_from(self.at).map_err(|_| CutShort)?;
        let places = usize::try_from(here - back).map_err(|_| CutShort)?;
        let size = usize::from(u16::from_le_bytes(array(self.bytes, places)?));
        let slot = 4 + 2 * field;
        if slot + 2 > size {
            return Ok(None);
        }
        let offset = usize::from(u16::from_le_bytes(array(self.bytes, places.saturating_add(slot))?));
        Ok((offset > 0).then_some(self.at.saturating_add(offset)))
    }

    /// A number of so many bytes; zeros where it has its default.
    pub fn number<const N: usize>(&self, field: usize) -> Result<[u8; N], CutShort> {
        self.place(field)?.map_or(Ok([0; N]), |at| array(self.bytes, at))
    }

    /// A table below this one.
    pub fn table(&self, field: usize) -> Result<Option<Self>, CutShort> {
        let Some(place) = self.place(field)? else { return Ok(None) };
        Ok(Some(Self { bytes: self.bytes, at: target(self.bytes, place)? }))
    }

    /// The bytes of a list whose items have `size` bytes each.
    fn items(&self, field: usize, size: usize) -> Result<(usize, &'b [u8]), CutShort> {
        let Some(place) = self.place(field)? else { return Ok((0, &[])) };
        let start = target(self.bytes, place)?;
        let n = unsigned(self.bytes, start)?.checked_mul(size).ok_or(CutShort)?;
        let first = start.checked_add(4).ok_or(CutShort)?;
        let end = first.checked_add(n).ok_or(CutShort)?;
        Ok((first, self.bytes.get(first..end).ok_or(CutShort)?))
    }

    /// A text.
    pub fn text(&self, field: usize) -> Result<String, CutShort> {
        Ok(String::from_utf8_lossy(self.items(field, 1)?.1).into_owned())
    }

    /// Pairs of numbers of eight bytes each, as structs of two fields are.
    pub fn pairs(&self, field: usize) -> Result<Vec<[i64; 2]>, CutShort> {
        let (_, items) = self.items(field, 16)?;
        let pair = |at| Ok([i64::from_le_bytes(array(items, at)?), i64::from_le_bytes(array(items, at + 8)?)]);
        (0..items.len()).step_by(16).map(pair).collect()
    }

    /// Tables below this one.
    pub fn tables(&self, field: usize) -> Result<Vec<Self>, CutShort> {
        let (first, items) = self.items(field, 4)?;
        let below = |index| Ok(Self { bytes: self.bytes, at: target(self.bytes, first + 4 * index)? });
        (0..items.len() / 4).map(below).collect()
    }
}
