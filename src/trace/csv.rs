//! Traces in CSV: one event per line, with the columns `event` (malloc, free, read, write),
//! `block`, `size` (bytes; of a malloc) and if need be `address` (of a malloc, decimal or
//! 0x...) and `reserved` (bytes that the allocator had from the device by then), in any
//! order. Other columns are passed over. A block is called by the same name from its malloc
//! to its free; then the name may be used again.

use super::{Block, Kind, Reason, Trace};
use arenic_passes::place::MAX_HEIGHT;
use csv::StringRecord;
use std::collections::{HashMap, HashSet};

const EVENT: &str = "malloc, free, read or write";
const SIZE: &str = "an integer from 0 to 2^60";
const ADDRESS: &str = "an address: an integer of 64 bits, decimal or 0x...";
const NAME: &str = "the name of a block";

/// What a name means at present.
struct Named {
    block: u32,
    /// Line of the malloc or of the free that came last.
    line: u64,
    free: bool,
}

pub(super) fn parse(bytes: &[u8]) -> Result<Trace, Reason> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let columns = Columns::new(reader.headers()?)?;
    let mut trace = Trace { alignment: 1, ..Trace::default() };
    let mut named: HashMap<String, Named> = HashMap::new();
    let mut reserved = Vec::new();
    let mut row = StringRecord::new();
    while reader.read_record(&mut row)? {
        let line = row.position().map_or(0, csv::Position::line);
        let (kind, name) = (columns.kind(&row, line)?, columns.name(&row, line)?);
        let block = match (kind, named.get(&name)) {
            (Kind::Malloc, Some(n)) if !n.free => {
                return Err(Reason::Allocated { line, block: name, since: n.line });
            }
            (Kind::Malloc, _) => {
                let size = integer("size", &row[columns.size], line)?;
                let address = columns.address(&row, line)?;
                trace.add(Block { name: name.clone(), size, address, ..Block::default() })?
            }
            (_, Some(n)) if n.free => {
                return Err(Reason::Freed { line, block: name, since: n.line });
            }
            (_, Some(n)) => n.block,
            (_, None) => return Err(Reason::Unknown { line, block: name }),
        };
        trace.push(kind, block)?;
        if matches!(kind, Kind::Malloc | Kind::Free) {
            named.insert(name, Named { block, line, free: kind == Kind::Free });
        }
        reserved.push(match columns.reserved.map_or("", |at| &row[at]) {
            "" => None,
            field => Some(integer("reserved", field, line)?),
        });
    }
    // A figure holds until the next one; what comes before the first had it, too.
    let mut last = reserved.iter().copied().flatten().next();
    trace.reserved = reserved
        .into_iter()
        .map(|now| {
            last = now.or(last);
            last
        })
        .collect();
    Ok(trace)
}

/// Where each column is.
struct Columns {
    event: usize,
    block: usize,
    size: usize,
    address: Option<usize>,
    reserved: Option<usize>,
}

impl Columns {
    fn new(header: &StringRecord) -> Result<Columns, Reason> {
        let mut names = HashSet::new();
        if let Some(twice) = header.iter().find(|name| !names.insert(*name)) {
            return Err(Reason::TwiceColumn(twice.to_owned()));
        }
        let column = |name: &str| header.iter().position(|h| h == name);
        let needed = |name: &'static str| column(name).ok_or(Reason::Column(name));
        Ok(Columns {
            event: needed("event")?,
            block: needed("block")?,
            size: needed("size")?,
            address: column("address"),
            reserved: column("reserved"),
        })
    }

    fn kind(&self, row: &StringRecord, line: u64) -> Result<Kind, Reason> {
        let field = &row[self.event];
        match field.to_ascii_lowercase().as_str() {
            "malloc" | "alloc" | "allocate" => Ok(Kind::Malloc),
            "free" | "dealloc" | "deallocate" => Ok(Kind::Free),
            "read" => Ok(Kind::Read),
            "write" => Ok(Kind::Write),
            _ => Err(wrong("event", field, line, EVENT)),
        }
    }

    fn name(&self, row: &StringRecord, line: u64) -> Result<String, Reason> {
        match &row[self.block] {
            "" => Err(wrong("block", "", line, NAME)),
            name => Ok(name.to_owned()),
        }
    }

    fn address(&self, row: &StringRecord, line: u64) -> Result<Option<u64>, Reason> {
        let field = self.address.map_or("", |at| &row[at]);
        let address = match field.strip_prefix("0x").or_else(|| field.strip_prefix("0X")) {
            _ if field.is_empty() => return Ok(None),
            Some(digits) => u64::from_str_radix(digits, 16),
            None => field.parse(),
        };
        address.map(Some).map_err(|_| wrong("address", field, line, ADDRESS))
    }
}

fn integer(column: &'static str, field: &str, line: u64) -> Result<u64, Reason> {
    let value = field.parse().ok().filter(|&n| n <= MAX_HEIGHT);
    value.ok_or_else(|| wrong(column, field, line, SIZE))
}

fn wrong(column: &'static str, field: &str, line: u64, expected: &'static str) -> Reason {
    Reason::Field { line, column, field: field.to_owned(), expected }
}
