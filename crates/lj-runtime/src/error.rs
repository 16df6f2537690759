//! What can go wrong while a plan is built or run.

/// An error of the runtime. After any of them the plan can be called again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A check inside a kernel failed, such as an index out of range.
    #[error("{message}{}", at(line.as_ref()))]
    Check {
        /// Python exception type to raise, such as `IndexError`.
        exception: String,
        /// Text of the exception, as eager's.
        message: String,
        /// The user's source line, if known.
        line: Option<String>,
    },
    /// An ATen call failed.
    #[error("{op}: {message}{}", at(line.as_ref()))]
    Torch {
        /// The operator, such as `aten.mm.out`.
        op: String,
        /// What torch says; before torch 2.13 only its standard error stream has the text.
        message: String,
        /// The user's source line, if known.
        line: Option<String>,
    },
    /// The callback that runs an operator through Python failed.
    #[error("{op}: {source}{}", at(line.as_ref()))]
    Callback {
        /// The operator.
        op: String,
        /// The user's source line, if known.
        line: Option<String>,
        /// What the callback returned (lj-python puts a `PyErr` here).
        source: CallbackError,
    },
    /// An input is not what the plan was compiled for.
    #[error("input {input}: expected {expected}, found {found}")]
    Input {
        /// Position.
        input: u32,
        /// What the plan was compiled for.
        expected: String,
        /// What was passed.
        found: String,
    },
    /// The result of an ATen call is not what the compiler was told it would be.
    #[error("result {result} of {op}: expected {expected}, found {found}{}", at(line.as_ref()))]
    Result {
        /// The operator.
        op: String,
        /// Which result.
        result: usize,
        /// What was announced at compile time.
        expected: String,
        /// What came.
        found: String,
        /// The user's source line, if known.
        line: Option<String>,
    },
    /// A symbolic size could not be evaluated (overflow, division by zero, no value).
    #[error("the size `{0}` has no usable value in this call")]
    Size(String),
    /// torch's libraries are not loaded or lack a function we cannot do without.
    #[error("torch's C interface: {0}")]
    Abi(String),
    /// An object file cannot be linked.
    #[error("object file: {0}")]
    Link(String),
    /// The program is not one this runtime can run; a fault of the compiler.
    #[error("invalid program: {0}")]
    Program(String),
    /// No memory for the arena.
    #[error("cannot allocate {0} bytes")]
    Memory(u64),
}

/// The error of a callback.
pub type CallbackError = Box<dyn std::error::Error + Send + Sync>;

/// The runtime's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn at(line: Option<&String>) -> String {
    line.map_or_else(String::new, |l| format!("\n  at {l}"))
}

impl Error {
    /// The same error with the user's source line, where the variant has one and it is not set.
    #[must_use]
    pub fn or_line(mut self, new: Option<&str>) -> Error {
        match &mut self {
            Error::Check { line, .. }
            | Error::Torch { line, .. }
            | Error::Callback { line, .. }
            | Error::Result { line, .. }
                if line.is_none() =>
            {
                *line = new.map(str::to_owned);
            }
            _ => {}
        }
        self
    }
}
