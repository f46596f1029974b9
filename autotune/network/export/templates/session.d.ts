
export interface Beginning {
@begin@}

export declare class Session {
  /** Places that the state has. */
  readonly length: number;
  /** What an encoder gives, once for a sequence. */
  begin(inputs: Beginning): void;
  /** As many places as the inputs have: outputs of all of them, or of the last one. */
  step(inputs: Inputs): Outputs;
  /** Forget all places; what `begin` was given stays. */
  reset(): void;
  /** Give the room back, for another session. */
  close(): void;
}
