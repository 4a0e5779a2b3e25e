//! How ranks find each other: the unique id, the choice of an interface, the rendezvous.

pub(crate) mod interface;
pub(crate) mod local;
pub(crate) mod meet;
pub(crate) mod regroup;
pub(crate) mod rendezvous;
pub(crate) mod unique_id;
