//! What registries say about container images: the platforms an image runs on, and how large it is.
//!
//! [`Registries`] is the door: [`Registries::cached`] answers from memory, [`Registries::fetch`] asks the registry and takes a second at most.
//! Behind it stand the cache, the protocol of registries (`registry`), HTTP with its limits (`exchange`), and the one place that
//! opens connections (`dial`), which refuses the addresses no registry has. [`Settings`] says which registries may be asked at all;
//! [`Keyring`] holds the credentials of one pod.
//!
//! Invariant: nothing that a registry answers makes this program read more than 4 MiB, follow more than three redirects, connect to a
//! link-local address, or take credentials along a redirect to another host.

mod cache;
mod challenge;
mod dial;
mod error;
mod exchange;
mod keyring;
mod manifest;
mod registries;
mod registry;
mod settings;

pub use dial::{Dial, Dialing, Io, SystemDial};
pub use error::AskError;
pub use keyring::{Credentials, Keyring};
pub use manifest::{Content, Program, Variant};
pub use registries::{ImageLookup, Registries};
pub use settings::{Settings, SettingsError};
