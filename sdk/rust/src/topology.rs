//! What a client declared and did not delete, to be declared again: as much as the application asked for.
//!
//! A queue that the broker named has two names here, the first and the one that it has now. Bindings and
//! subscriptions keep the first.

use std::collections::BTreeMap;

use crate::wire::{op, Encoder};

#[derive(Clone)]
pub(crate) struct DeclareExchange {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    pub(crate) passive: bool,
    pub(crate) args: Vec<u8>,
}

impl DeclareExchange {
    pub(crate) fn encode(&self, rid: u64, out: &mut Vec<u8>) {
        Encoder::new(out, op::DECLARE_EXCHANGE)
            .uint("rid", rid)
            .str("name", &self.name)
            .str("type", &self.kind)
            .bool("durable", self.durable)
            .bool("auto_delete", self.auto_delete)
            .bool("internal", self.internal)
            .bool("passive", self.passive)
            .raw("args", &self.args)
            .end(&[]);
    }
}

#[derive(Clone)]
pub(crate) struct DeclareQueue {
    /// Empty when the broker chooses it.
    pub(crate) name: String,
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
    pub(crate) passive: bool,
    pub(crate) args: Vec<u8>,
}

impl DeclareQueue {
    /// `name` is the one that the queue has now.
    pub(crate) fn encode(&self, rid: u64, name: &str, out: &mut Vec<u8>) {
        Encoder::new(out, op::DECLARE_QUEUE)
            .uint("rid", rid)
            .str("name", name)
            .bool("durable", self.durable)
            .bool("exclusive", self.exclusive)
            .bool("auto_delete", self.auto_delete)
            .bool("passive", self.passive)
            .raw("args", &self.args)
            .end(&[]);
    }
}

/// A binding, or what is to be one. In the topology its queue is under its first name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bind {
    pub(crate) exchange: String,
    pub(crate) queue: String,
    pub(crate) to_exchange: String,
    pub(crate) key: String,
    pub(crate) args: Vec<u8>,
}

impl Bind {
    pub(crate) fn encode(&self, op: u8, rid: u64, topology: &Topology, out: &mut Vec<u8>) {
        Encoder::new(out, op)
            .uint("rid", rid)
            .str("exchange", &self.exchange)
            .str("queue", topology.queue(&self.queue))
            .str("to_exchange", &self.to_exchange)
            .str("key", &self.key)
            .raw("args", &self.args)
            .end(&[]);
    }
}

struct Queue {
    order: u64,
    name: String,
    declare: DeclareQueue,
}

/// A declaration to be made again.
#[derive(Clone)]
pub(crate) enum Declaration {
    Exchange(DeclareExchange),
    /// With the queue's first name.
    Queue(String, DeclareQueue),
}

impl Declaration {
    pub(crate) fn encode(&self, rid: u64, out: &mut Vec<u8>) {
        match self {
            Declaration::Exchange(e) => e.encode(rid, out),
            Declaration::Queue(_, q) => q.encode(rid, &q.name, out),
        }
    }
}

#[derive(Default)]
pub(crate) struct Topology {
    declared: u64, // so far, for their order
    exchanges: BTreeMap<String, (u64, DeclareExchange)>,
    queues: BTreeMap<String, Queue>,   // by first name
    renamed: BTreeMap<String, String>, // from the present name, where it is another, to the first
    bindings: BTreeMap<Bind, u64>,
}

impl Topology {
    fn order(&mut self) -> u64 {
        self.declared += 1;
        self.declared
    }

    /// The name under which a queue was declared, of which `name` is the first or the present one.
    pub(crate) fn first<'a>(&'a self, name: &'a str) -> &'a str {
        self.renamed.get(name).map_or(name, |first| first)
    }

    /// The name that a queue has now, of which `name` is the first or the present one.
    pub(crate) fn queue<'a>(&'a self, name: &'a str) -> &'a str {
        self.queues.get(name).map_or(name, |q| &q.name)
    }

    pub(crate) fn declared_exchange(&mut self, e: &DeclareExchange) {
        if e.passive {
            return;
        }
        let order = match self.exchanges.get(&e.name) {
            Some((order, _)) => *order,
            None => self.order(),
        };
        self.exchanges.insert(e.name.clone(), (order, e.clone()));
    }

    pub(crate) fn deleted_exchange(&mut self, name: &str) {
        self.exchanges.remove(name);
        self.bindings.retain(|b, _| b.exchange != name && b.to_exchange != name);
    }

    /// `name` is the broker's answer.
    pub(crate) fn declared_queue(&mut self, declare: &DeclareQueue, name: &str) {
        if declare.passive {
            return;
        }
        let first = self.first(name).to_owned();
        if let Some(q) = self.queues.get_mut(&first) {
            if !q.declare.name.is_empty() {
                q.declare = declare.clone();
            }
            return;
        }
        let order = self.order();
        self.queues.insert(first, Queue { order, name: name.into(), declare: declare.clone() });
    }

    /// Forgets a queue that is known to be gone.
    pub(crate) fn deleted_queue(&mut self, name: &str) {
        let first = self.first(name).to_owned();
        if let Some(q) = self.queues.remove(&first) {
            self.renamed.remove(&q.name);
        }
        self.bindings.retain(|b, _| b.queue != first);
    }

    /// Notes the name that a queue got when it was declared again.
    pub(crate) fn rename(&mut self, first: &str, name: &str) {
        let Some(q) = self.queues.get_mut(first) else {
            return;
        };
        self.renamed.remove(&q.name);
        q.name = name.into();
        if name != first {
            self.renamed.insert(name.into(), first.into());
        }
    }

    pub(crate) fn is_auto_delete(&self, first: &str) -> bool {
        self.queues.get(first).is_some_and(|q| q.declare.auto_delete)
    }

    fn key(&self, b: &Bind) -> Bind {
        Bind { queue: self.first(&b.queue).to_owned(), ..b.clone() }
    }

    pub(crate) fn bound(&mut self, b: &Bind) {
        let (key, order) = (self.key(b), self.order());
        self.bindings.entry(key).or_insert(order);
    }

    /// Forgets a binding, and its source if that went with its last one.
    pub(crate) fn unbound(&mut self, b: &Bind) {
        let key = self.key(b);
        self.bindings.remove(&key);
        let auto_delete = self.exchanges.get(&b.exchange).is_some_and(|(_, e)| e.auto_delete);
        if auto_delete && !self.bindings.keys().any(|other| other.exchange == b.exchange) {
            self.deleted_exchange(&b.exchange);
        }
    }

    /// Exchanges and queues, in the order in which they were declared.
    pub(crate) fn declarations(&self) -> Vec<Declaration> {
        let mut list: Vec<(u64, Declaration)> =
            self.exchanges.values().map(|(order, e)| (*order, Declaration::Exchange(e.clone()))).collect();
        list.extend(
            self.queues.iter().map(|(first, q)| (q.order, Declaration::Queue(first.clone(), q.declare.clone()))),
        );
        in_order(list)
    }

    /// Bindings, in their order.
    pub(crate) fn bindings(&self) -> Vec<Bind> {
        in_order(self.bindings.iter().map(|(b, order)| (*order, b.clone())).collect())
    }
}

fn in_order<T>(mut list: Vec<(u64, T)>) -> Vec<T> {
    list.sort_by_key(|(order, _)| *order);
    list.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> DeclareQueue {
        DeclareQueue {
            name: name.into(),
            durable: false,
            exclusive: true,
            auto_delete: true,
            passive: false,
            args: vec![],
        }
    }

    fn bind(queue: &str) -> Bind {
        Bind { exchange: "e".into(), queue: queue.into(), to_exchange: String::new(), key: "k".into(), args: vec![] }
    }

    #[test]
    fn both_names_of_a_renamed_queue_mean_it() {
        let mut t = Topology::default();
        t.declared_queue(&queue(""), "amq.gen-1");
        t.bound(&bind("amq.gen-1"));
        t.rename("amq.gen-1", "amq.gen-2");
        t.rename("amq.gen-1", "amq.gen-3");
        assert_eq!(t.queue("amq.gen-1"), "amq.gen-3");
        assert_eq!(t.first("amq.gen-3"), "amq.gen-1");
        assert_eq!(t.first("amq.gen-2"), "amq.gen-2");
        t.bound(&bind("amq.gen-3")); // the same binding
        assert_eq!(t.bindings().len(), 1);
        t.deleted_queue("amq.gen-3");
        assert!(t.bindings().is_empty() && t.declarations().is_empty());
        assert_eq!(t.first("amq.gen-3"), "amq.gen-3");
    }

    #[test]
    fn an_auto_delete_exchange_goes_with_its_last_binding() {
        let mut t = Topology::default();
        let exchange = DeclareExchange {
            name: "e".into(),
            kind: "fanout".into(),
            durable: true,
            auto_delete: true,
            internal: false,
            passive: false,
            args: vec![],
        };
        t.declared_exchange(&exchange);
        t.bound(&bind("a"));
        t.bound(&bind("b"));
        t.unbound(&bind("a"));
        assert_eq!(t.declarations().len(), 1);
        t.unbound(&bind("b"));
        assert!(t.declarations().is_empty());
    }

    #[test]
    fn declarations_keep_their_order() {
        let mut t = Topology::default();
        for name in ["b", "c", "a", "b"] {
            t.declared_queue(&queue(name), name);
        }
        let names: Vec<_> = t
            .declarations()
            .into_iter()
            .map(|d| match d {
                Declaration::Queue(first, _) => first,
                Declaration::Exchange(e) => e.name,
            })
            .collect();
        assert_eq!(names, ["b", "c", "a"]);
    }
}
