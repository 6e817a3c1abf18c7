//! One step of Adam.

/// Settings of a step of Adam: rates, decays and the bias corrections of the step's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamStep {
    pub(crate) rate: f64,
    pub(crate) beta: (f64, f64),
    pub(crate) epsilon: f64,
    /// Decoupled weight decay (AdamW); 0 for Adam.
    pub(crate) decay: f64,
    /// The number of this step, from 1.
    pub(crate) time: i32,
}
