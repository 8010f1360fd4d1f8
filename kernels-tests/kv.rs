//! Page tables against a model: a slot of the pool holds the last tag written to it, and every table reads its own.

use std::collections::HashSet;

use farpast::Error;
use farpast::kv::{PAGE, PagePool, PageTable};

use crate::cases::Random;

/// A table and the tags that were written at its positions.
struct Written {
    table: PageTable,
    tags: Vec<u64>,
}

const PAGES: usize = 61;

#[test]
fn tables_never_share_what_either_may_write() {
    let mut random = Random(21);
    let mut order: Vec<u32> = (0..PAGES as u32).collect();
    random.shuffle(&mut order);
    let pool = PagePool::in_order(order);
    let mut slots = vec![0; PAGES * PAGE];
    let mut tables: Vec<Written> = vec![];
    let (mut tag, mut full) = (0, 0);
    for operation in 0..100_000 {
        let at = random.below(tables.len().max(1));
        match random.below(10) {
            0 if tables.len() < 12 => tables.push(Written { table: PageTable::new(&pool), tags: vec![] }),
            1 if tables.len() > 1 => drop(tables.swap_remove(at)),
            2 if (1..12).contains(&tables.len()) => {
                let table = tables[at].table.fork();
                assert_eq!(table.len(), tables[at].table.len() / PAGE * PAGE);
                let tags = tables[at].tags[..table.len()].to_vec();
                tables.push(Written { table, tags });
            }
            3 | 4 if !tables.is_empty() => {
                let w = &mut tables[at];
                let wanted = random.below(w.tags.len() + 2);
                w.table.truncate(wanted);
                let least = wanted.min(w.tags.len());
                assert!(w.table.len() <= least && w.table.len() + PAGE > least, "a page at most is lost");
                w.tags.truncate(w.table.len());
            }
            5.. if !tables.is_empty() => {
                let w = &mut tables[at];
                let n = random.below(40);
                let (free, needed, before) = (pool.free().len(), w.table.pages_for(n), w.table.pages().to_vec());
                match w.table.append(n) {
                    Ok(()) => {
                        assert_eq!(pool.free().len(), free - needed);
                        for p in w.tags.len()..w.table.len() {
                            tag += 1;
                            slots[w.table.slot(p) as usize] = tag;
                            w.tags.push(tag);
                        }
                    }
                    Err(Error::OutOfPages { needed: n, free: f }) => {
                        assert_eq!((n, f, w.table.pages()), (needed, free, &before[..]));
                        assert!(needed > free);
                        full += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            _ => {}
        }
        let mut held: HashSet<u32> = HashSet::new();
        for w in &tables {
            assert_eq!(w.table.len(), w.tags.len());
            assert_eq!(w.table.is_empty(), w.tags.is_empty());
            assert_eq!(w.table.pages().len(), w.tags.len().div_ceil(PAGE));
            held.extend(w.table.pages());
        }
        assert_eq!(pool.free().len() + held.len(), PAGES, "operation {operation}");
        if operation % 7 == 0 {
            for w in &tables {
                let read = (0..w.tags.len()).map(|p| slots[w.table.slot(p) as usize]);
                assert!(read.eq(w.tags.iter().copied()), "operation {operation}");
            }
            assert!(pool.free().iter().all(|page| !held.contains(page)), "operation {operation}");
        }
    }
    assert!(full > 100, "the pool ran out {full} times");
    tables.clear();
    let mut free = pool.free();
    free.sort_unstable();
    assert_eq!(free, (0..PAGES as u32).collect::<Vec<_>>());
}

#[test]
fn a_shared_page_is_not_written_by_a_table_that_was_cut_within_it() {
    let pool = PagePool::new(4);
    let mut a = PageTable::new(&pool);
    a.append(2 * PAGE).unwrap();
    let b = a.fork();
    a.truncate(PAGE + 3);
    assert_eq!(a.len(), PAGE);
    a.append(1).unwrap();
    assert_ne!(a.pages()[1], b.pages()[1]);
}
