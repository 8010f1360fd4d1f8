//! Which pages of the pool hold which positions of a sequence. Knows nothing of the device.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// Positions of a page.
pub const PAGE: usize = 16;

/// The pages of a device: a free list and a reference count for each. Cheap to clone; clones are the same pool.
#[derive(Clone, Debug)]
pub struct PagePool(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    free: Vec<u32>,
    references: Vec<u32>,
    /// Pages that are kept for later, whoever refers to them: one reference is for that.
    kept: Vec<bool>,
    /// Kept pages that no table refers to.
    n_idle: usize,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: usize) -> Self {
        Self::in_order((0..pages as u32).rev().collect())
    }

    /// A pool of the pages `0..free.len()` that hands them out from the end of `free`, which names each once.
    pub fn in_order(free: Vec<u32>) -> Self {
        let (references, kept) = (vec![0; free.len()], vec![false; free.len()]);
        Self(Arc::new(Mutex::new(Counts { free, references, kept, n_idle: 0 })))
    }

    /// Pages that no table refers to.
    pub fn free(&self) -> Vec<u32> {
        self.lock().free.clone()
    }

    /// How many they are.
    pub fn n_free(&self) -> usize {
        self.lock().free.len()
    }

    /// Takes `n` pages that no table knows. On [`Error::OutOfPages`] nothing has changed.
    pub fn take(&self, n: usize) -> Result<Pages> {
        let pages = self.lock().take(n)?;
        Ok(Pages { pool: self.clone(), pages })
    }

    /// Kept pages that no table refers to.
    pub fn n_idle(&self) -> usize {
        self.lock().n_idle
    }

    /// Keeps a page that a table refers to beyond that table.
    pub(crate) fn keep(&self, page: u32) {
        let mut pages = self.lock();
        pages.kept[page as usize] = true;
        pages.references[page as usize] += 1;
    }

    /// Whether no table refers to a kept page.
    pub(crate) fn is_idle(&self, page: u32) -> bool {
        self.lock().references[page as usize] == 1
    }

    /// Keeps a page no longer.
    pub(crate) fn forget(&self, page: u32) {
        let mut pages = self.lock();
        let i = page as usize;
        pages.n_idle -= usize::from(pages.references[i] == 1);
        pages.kept[i] = false;
        pages.release(page);
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn take(&mut self, needed: usize) -> Result<Vec<u32>> {
        let free = self.free.len();
        if free < needed {
            return Err(Error::OutOfPages { needed, free });
        }
        let pages = self.free.split_off(free - needed);
        pages.iter().for_each(|page| self.references[*page as usize] = 1);
        Ok(pages.into_iter().rev().collect())
    }

    /// One more reference to a page in use.
    fn share(&mut self, page: u32) {
        if page == GONE {
            return;
        }
        let i = page as usize;
        self.n_idle -= usize::from(self.kept[i] && self.references[i] == 1);
        self.references[i] += 1;
    }

    fn release(&mut self, page: u32) {
        if page == GONE {
            return;
        }
        let i = page as usize;
        self.references[i] -= 1;
        match self.references[i] {
            0 => self.free.push(page),
            1 if self.kept[i] => self.n_idle += 1,
            _ => {}
        }
    }
}

/// Pages that hold something else than positions in order. Gives them back to the pool when dropped.
#[derive(Debug)]
pub struct Pages {
    pool: PagePool,
    pages: Vec<u32>,
}

impl Deref for Pages {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.pages
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        self.pages.iter().for_each(|page| pool.release(*page));
    }
}

/// What a table has in place of a page that it gave back.
pub(crate) const GONE: u32 = u32::MAX;

/// The pages of one sequence, in order of position. Gives them back to the pool when dropped.
#[derive(Debug)]
pub struct PageTable {
    pool: PagePool,
    pages: Vec<u32>,
    len: usize,
    /// Positions from PAGE to before this one have no page any more.
    near: usize,
}

impl PageTable {
    /// A table of no positions.
    pub fn new(pool: &PagePool) -> Self {
        Self { pool: pool.clone(), pages: Vec::new(), len: 0, near: PAGE }
    }

    /// A table that shares these full pages, which are in use.
    pub(crate) fn sharing(pool: &PagePool, pages: Vec<u32>) -> Self {
        let mut all = pool.lock();
        pages.iter().for_each(|page| all.share(*page));
        drop(all);
        Self { pool: pool.clone(), len: pages.len() * PAGE, pages, near: PAGE }
    }

    /// Positions stored.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is stored.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Page of positions `i * PAGE ..`, for each i. Of those given back `u32::MAX` is left.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The first position behind the first page that still has one.
    pub fn near(&self) -> usize {
        self.near
    }

    /// Gives back the pages of the positions behind the first page and before `near`, which begins a page.
    pub fn give_back(&mut self, near: usize) {
        if near <= self.near {
            return;
        }
        let mut pool = self.pool.lock();
        for page in &mut self.pages[self.near / PAGE..near / PAGE] {
            pool.release(std::mem::replace(page, GONE));
        }
        self.near = near;
    }

    /// Pages that `n` more positions would take from the pool.
    pub fn pages_for(&self, n: usize) -> usize {
        (self.len + n).div_ceil(PAGE) - self.pages.len()
    }

    /// Appends `n` positions. On [`Error::OutOfPages`] nothing has changed.
    pub fn append(&mut self, n: usize) -> Result<()> {
        let taken = self.pool.lock().take(self.pages_for(n))?;
        self.pages.extend(taken);
        self.len += n;
        Ok(())
    }

    /// Where the pool stores `position`: page · PAGE + offset.
    pub fn slot(&self, position: usize) -> u32 {
        self.pages[position / PAGE] * PAGE as u32 + (position % PAGE) as u32
    }

    /// Forgets the positions from `len` on. A page in use by another table is never written again: where `len` lies within
    /// one, its positions are forgotten too. Where it lies before [`near`](Self::near), only the first page stays: what followed it
    /// is nowhere. [`len`](Self::len) tells what is left.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        if self.len < self.near {
            self.len = self.len.min(PAGE);
            self.near = PAGE;
        }
        let mut pool = self.pool.lock();
        if let Some(&last) = self.pages.get(self.len / PAGE)
            && last != GONE
            && pool.references[last as usize] > 1
        {
            self.len -= self.len % PAGE;
        }
        for page in self.pages.drain(self.len.div_ceil(PAGE)..) {
            pool.release(page);
        }
    }

    /// A table that shares the full pages of this one: up to PAGE - 1 positions at the end are not in it.
    pub fn fork(&self) -> Self {
        let mut fork = Self::sharing(&self.pool, self.pages[..self.len / PAGE].to_vec());
        fork.near = self.near;
        fork
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        self.truncate(0);
    }
}
