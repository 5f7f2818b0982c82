//! The types of chunk that the AI SDK knows, and the fields that each must have.

macro_rules! kinds {
    ($($kind:ident $name:literal [$($field:literal),*],)*) => {
        /// What a chunk is. The list is everything that some generation of the SDK (5, 6, 7) understands; we ourselves
        /// write only what all of them do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ChunkKind {
            $($kind,)*
            /// `data-` and a name.
            Data,
        }

        impl ChunkKind {
            pub const ALL: &[ChunkKind] = &[$(ChunkKind::$kind,)* ChunkKind::Data];

            pub fn parse(name: &str) -> Option<ChunkKind> {
                match name {
                    $($name => Some(ChunkKind::$kind),)*
                    _ => name.starts_with("data-").then_some(ChunkKind::Data),
                }
            }

            /// Its name; for data, what the name begins with.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(ChunkKind::$kind => $name,)*
                    ChunkKind::Data => "data-",
                }
            }

            /// The fields without which no parser takes it. `input`, `output` and `data` are not among them: JavaScript
            /// leaves out what is undefined, and the parsers allow it.
            pub fn required(self) -> &'static [&'static str] {
                match self {
                    $(ChunkKind::$kind => &[$($field),*],)*
                    ChunkKind::Data => &[],
                }
            }
        }
    };
}

kinds! {
    Start "start" [],
    StartStep "start-step" [],
    TextStart "text-start" ["id"],
    TextDelta "text-delta" ["id", "delta"],
    TextEnd "text-end" ["id"],
    ReasoningStart "reasoning-start" ["id"],
    ReasoningDelta "reasoning-delta" ["id", "delta"],
    ReasoningEnd "reasoning-end" ["id"],
    ToolInputStart "tool-input-start" ["toolCallId", "toolName"],
    ToolInputDelta "tool-input-delta" ["toolCallId", "inputTextDelta"],
    ToolInputAvailable "tool-input-available" ["toolCallId", "toolName"],
    ToolInputError "tool-input-error" ["toolCallId", "toolName", "errorText"],
    ToolApprovalRequest "tool-approval-request" ["approvalId", "toolCallId"],
    ToolApprovalResponse "tool-approval-response" ["approvalId", "approved"],
    ToolOutputAvailable "tool-output-available" ["toolCallId"],
    ToolOutputError "tool-output-error" ["toolCallId", "errorText"],
    ToolOutputDenied "tool-output-denied" ["toolCallId"],
    SourceUrl "source-url" ["sourceId", "url"],
    SourceDocument "source-document" ["sourceId", "mediaType", "title"],
    File "file" ["url", "mediaType"],
    ReasoningFile "reasoning-file" ["url", "mediaType"],
    Custom "custom" ["kind"],
    SteeringMessage "steering-message" ["id", "parts"],
    MessageMetadata "message-metadata" [],
    FinishStep "finish-step" [],
    ResetStep "reset-step" [],
    Finish "finish" [],
    Abort "abort" [],
    Error "error" ["errorText"],
}
