//! The product's flows, each as a user lives through it: the program in its own process, real manifests, a real kubectl.

mod autoscale;
mod background;
mod blog;
mod doctor;
mod faults;
mod gmsa;
mod identity;
mod images;
mod mixed_versions;
mod once;
mod pools;
mod profiles;
mod quick_start;
mod readme;
mod reasons;
mod reservations;
mod restart;
mod start;
mod streams;
mod traces;
mod webhooks;
