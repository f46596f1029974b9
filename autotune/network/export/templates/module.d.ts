// @name@: @model@, compiled by autotune @version@ for WebAssembly.

/** An array, or with its shape; ONNX Runtime's tensors are such. */
export type Input<T> = T | {readonly data: T; readonly dims: readonly number[]};

export interface Inputs {
@inputs@}

export interface Outputs {
@outputs@}

export type Source = string | URL | BufferSource | Response;

export declare class Model {
  /** Bytes of memory that this model holds. */
  readonly memoryBytes: number;
  /** Threads that compute. */
  readonly threads: number;
  /** End the threads of this model, which is of no use any more. */
  close(): void;
@methods@}

/** Make a model of the files beside the script, or of others. */
export declare function create(
  options?: {
    wasm?: Source | WebAssembly.Module;
    weights?: Source;
    worker?: string | URL;
    threads?: number;
    sessions?: number;
  },
): Promise<Model>;

export interface Port {
  name: string;
  identifier: string;
  dtype: string;
  /** Of each variant; with lengths the longest. */
  shapes: number[][];
  fixed: boolean;
  /** With lengths: an extent is factor * n + offset, with n a number of the call. */
  extents?: (number | {name: string; most: number; factor: number; offset: number})[][];
}

export declare const signature: {
  name: string;
  model: string;
  autotune: string;
  cpu: string;
  features: string[];
  threads: number;
  inputs: Port[];
  outputs: Port[];
};
