//! The exits of `connect` in levels: the exits of one order are a level, and the lowest order is
//! level 0. An entry uses the lowest level that answers.

use std::collections::BTreeSet;

use muxtunnel_gateway_config::Connect;

#[cfg(feature = "connect-command")]
use crate::io::transport::command_name;
use crate::net::egress::Address;

/// The exits of an entry.
#[derive(Debug)]
pub(super) struct Exits {
    all: Vec<Connect>,
    /// The orders in use, ascending.
    orders: Vec<u8>,
}

impl Exits {
    pub(super) fn new(all: Vec<Connect>) -> Self {
        let orders: BTreeSet<u8> = all.iter().map(|exit| exit.order).collect();
        let orders = orders.into_iter().collect();
        Self { all, orders }
    }

    /// The number of levels.
    pub(super) fn levels(&self) -> usize {
        self.orders.len()
    }

    /// The order of the exits of `level`.
    pub(super) fn order(&self, level: usize) -> u8 {
        self.orders.get(level).copied().unwrap_or_default()
    }

    /// The exit with this index in `connect`.
    pub(super) fn at(&self, index: usize) -> Option<&Connect> {
        self.all.get(index)
    }

    /// The exits of `level`, with their indices in `connect`.
    pub(super) fn of_level(&self, level: usize) -> impl Iterator<Item = (usize, &Connect)> {
        let order = self.order(level);
        let exits = self.all.iter().enumerate();
        exits.filter(move |(_, exit)| exit.order == order)
    }

    /// The exit of `address`, with its index.
    pub(super) fn of_address(&self, address: &Address) -> impl Iterator<Item = (usize, &Connect)> {
        let index = address.exit();
        self.at(index).into_iter().map(move |exit| (index, exit))
    }

    /// The exits of `level` in log messages.
    pub(super) fn label(&self, level: usize) -> String {
        let labels: Vec<_> = self.of_level(level).map(|(_, exit)| label(exit)).collect();
        labels.join(",")
    }
}

/// An exit in log messages: the dialled address, or the name of its command.
pub(super) fn label(exit: &Connect) -> String {
    match exit.dialled() {
        Some(address) => address.to_owned(),
        #[cfg(feature = "connect-command")]
        None => command_name(&exit.command),
        #[cfg(not(feature = "connect-command"))]
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_of_one_order_are_a_level_and_the_lowest_order_is_the_first() {
        let exit = |name: &str, order| Connect {
            name: name.to_owned(),
            order,
            address: Some(format!("{name}:1")),
            ..Connect::default()
        };
        let exits = Exits::new(vec![exit("c", 7), exit("a", 0), exit("d", 7), exit("b", 2)]);
        let labels: Vec<_> = (0..exits.levels()).map(|at| exits.label(at)).collect();
        assert_eq!(labels, ["a:1", "b:1", "c:1,d:1"]);
        assert_eq!([0, 1, 2].map(|level| exits.order(level)), [0, 2, 7]);
        let indices: Vec<_> = exits.of_level(2).map(|(index, _)| index).collect();
        assert_eq!(indices, [0, 2]);
    }
}
