//! The streams of a session that have a local end, by number. `limits.streams` bounds them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) struct Streams<S> {
    by_number: RefCell<BTreeMap<u64, Rc<S>>>,
}

impl<S> Streams<S> {
    pub(super) fn new() -> Self {
        Self {
            by_number: RefCell::default(),
        }
    }

    pub(crate) fn add(&self, number: u64, io: &Rc<S>) {
        self.by_number.borrow_mut().insert(number, Rc::clone(io));
    }

    pub(super) fn remove(&self, number: u64) {
        self.by_number.borrow_mut().remove(&number);
    }

    pub(crate) fn get(&self, number: u64) -> Option<Rc<S>> {
        self.by_number.borrow().get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Rc<S>> {
        self.by_number.borrow().values().cloned().collect()
    }

    pub(crate) fn any(&self, is: impl Fn(&S) -> bool) -> bool {
        self.by_number.borrow().values().any(|io| is(io))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.borrow().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.borrow().is_empty()
    }
}
