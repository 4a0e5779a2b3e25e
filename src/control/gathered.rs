//! The payloads of an exchange, kept and sent as what differs between neighbours: ranks mostly say
//! the same, or something that starts the same.
#![forbid(unsafe_code)]

use std::ops::Range;

/// Payloads that expand to more than this are no exchange of ours.
const MAX_BYTES: usize = 1 << 30;

/// One payload per rank, as far as they are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    /// Where each rank's payload lies in `bytes`; neighbours may share one.
    spans: Vec<Option<(u32, u32)>>,
    present: usize,
}

impl Gathered {
    pub(crate) fn new(nranks: u32) -> Gathered {
        Gathered {
            bytes: Vec::new(),
            spans: vec![None; nranks as usize],
            present: 0,
        }
    }

    /// Puts the same payload for all ranks of a range that have none yet. `false`: it is too large, or
    /// there are no such ranks.
    pub(crate) fn put(&mut self, ranks: Range<u32>, payload: &[u8]) -> bool {
        let start = self.bytes.len();
        if ranks.end as usize > self.spans.len() || start + payload.len() > MAX_BYTES {
            return false;
        }
        self.bytes.extend_from_slice(payload);
        for span in &mut self.spans[ranks.start as usize..ranks.end as usize] {
            if span.is_none() {
                *span = Some((start as u32, payload.len() as u32));
                self.present += 1;
            }
        }
        true
    }

    pub(crate) fn get(&self, rank: usize) -> Option<&[u8]> {
        let (start, length) = (*self.spans.get(rank)?)?;
        Some(&self.bytes[start as usize..][..length as usize])
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Ranks whose payload is there.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    /// Every rank's payload, in rank order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.len()).map(|rank| self.get(rank))
    }

    /// As [`Gathered::iter`], with an empty one where there is none.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(Option::unwrap_or_default)
    }

    /// The rank's payload, or an empty one.
    pub(crate) fn of(&self, rank: usize) -> &[u8] {
        self.get(rank).unwrap_or_default()
    }

    /// Whether neighbours share their payload, so that what was found of one holds for the other.
    fn same(&self, a: usize, b: usize) -> bool {
        self.spans[a] == self.spans[b] || self.get(a) == self.get(b)
    }

    /// Writes the payloads of those ranks of `range` that are `wanted` and there.
    pub(crate) fn pack(&self, range: Range<u32>, wanted: impl Fn(u32) -> bool, to: &mut Vec<u8>) {
        let mut last: &[u8] = &[];
        let mut end = range.start;
        let mut rank = range.start;
        let there = |rank: u32| wanted(rank) && self.spans[rank as usize].is_some();
        while rank < range.end {
            if !there(rank) {
                rank += 1;
                continue;
            }
            let first = rank;
            rank += 1;
            while rank < range.end && there(rank) && self.same(first as usize, rank as usize) {
                rank += 1;
            }
            let payload = self.of(first as usize);
            let common = payload.iter().zip(last).take_while(|(a, b)| a == b).count();
            for number in [first - end, rank - first, common as u32] {
                put_number(to, number);
            }
            put_number(to, (payload.len() - common) as u32);
            to.extend_from_slice(&payload[common..]);
            last = payload;
            end = rank;
        }
    }

    /// Takes in what [`Gathered::pack`] has written for the same range; calls `seen` for each payload
    /// and its ranks. `None`: it is something else.
    pub(crate) fn unpack(
        &mut self,
        range: Range<u32>,
        mut from: &[u8],
        mut seen: impl FnMut(Range<u32>, &[u8]),
    ) -> Option<()> {
        let mut payload: Vec<u8> = Vec::new();
        let mut end = range.start;
        while !from.is_empty() {
            let first = end.checked_add(take_number(&mut from)?)?;
            end = first.checked_add(take_number(&mut from)?)?;
            let common = take_number(&mut from)? as usize;
            let rest = take_number(&mut from)? as usize;
            if end > range.end || first == end || common > payload.len() || rest > from.len() {
                return None;
            }
            payload.truncate(common);
            let (own, after) = from.split_at(rest);
            payload.extend_from_slice(own);
            from = after;
            if !self.put(first..end, &payload) {
                return None;
            }
            seen(first..end, &payload);
        }
        Some(())
    }
}

/// Seven bits a byte, the lowest first.
fn put_number(to: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn take_number(from: &mut &[u8]) -> Option<u32> {
    let mut number = 0u64;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(number).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(gathered: &Gathered, range: Range<u32>) -> Vec<u8> {
        let mut bytes = Vec::new();
        gathered.pack(range, |_| true, &mut bytes);
        bytes
    }

    #[test]
    fn payloads_survive_the_wire_and_equal_ones_cost_nothing() {
        let mut from = Gathered::new(300);
        for rank in 0..300u32 {
            let payload = match rank {
                7 | 250 => continue,
                0..100 => b"the same".to_vec(),
                _ => format!("starts the same, ends with {rank}").into_bytes(),
            };
            assert!(from.put(rank..rank + 1, &payload));
        }
        assert_eq!(from.present(), 298);
        let bytes = packed(&from, 0..300);
        assert!(bytes.len() < 200 * 9 + 60, "{} bytes", bytes.len());
        let mut to = Gathered::new(300);
        let mut ranks = 0;
        to.unpack(0..300, &bytes, |range, _| ranks += range.len())
            .unwrap();
        assert_eq!((ranks, to.present()), (298, 298));
        assert!(to.iter().eq(from.iter()));
        // A part of it, from another rank on.
        let bytes = packed(&from, 90..120);
        let mut to = Gathered::new(300);
        to.unpack(90..120, &bytes, |_, _| ()).unwrap();
        assert_eq!(to.present(), 30);
        assert!((90..120).all(|rank| to.get(rank) == from.get(rank)));
        assert!(to.get(89).is_none() && to.of(89).is_empty());
    }

    #[test]
    fn what_is_cut_or_outside_the_range_is_refused() {
        let mut from = Gathered::new(8);
        for rank in 0..8 {
            from.put(rank..rank + 1, &[rank as u8; 5]);
        }
        let bytes = packed(&from, 0..8);
        let read = |range, bytes: &[u8]| Gathered::new(8).unpack(range, bytes, |_, _| ());
        assert!(read(0..8, &bytes).is_some());
        assert!(read(0..7, &bytes).is_none());
        assert!(read(1..8, &bytes).is_none());
        let mut whole = 0;
        for cut in 1..bytes.len() {
            // Between two payloads a cut can't be seen.
            whole += usize::from(read(0..8, &bytes[..cut]).is_some());
        }
        assert_eq!(whole, 7);
        assert!(read(0..8, &[0xff; 40]).is_none());
        assert!(
            read(0..8, &[0, 1, 9, 0]).is_none(),
            "nothing to have in common"
        );
    }
}
