//! The connections of clients on the network: how many there may be, and which of them are in use.

mod activity;
mod places;

pub(crate) use self::{
    activity::ActivityGuard,
    places::{Kind, Place, Places},
};
